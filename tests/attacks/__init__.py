"""Attacks on rewards, sandboxes and the driver, as one seeded suite: `make attacks`, docs/threat-model.md.

    python -m tests.attacks [--minutes 10] [--seed N] [--place namespace|docker|driver] [--family NAME] [--list]
    python -m tests.attacks --seed N --case namespace/programs/17

A family is a kind of attack. Its listed cases are those that the tests of the rooms know by name; further ones are
drawn by a seed, as long as the minutes last. Cases are played in one driver beside honest episodes. After each batch it
is asked whether the promises hold: nobody earns more than what was done, no episode is lost, honest ones are right, the
event loop did not stand still, the driver lives, and no process, control group, container or file is left.
"""
