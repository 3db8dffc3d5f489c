"""What a recipe means and what is wrong with it, decided once, before the first episode (`plan.py`)."""
