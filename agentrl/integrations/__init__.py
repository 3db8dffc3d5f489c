"""Other frameworks, fed with our episodes. Each needs its own extra; nothing else imports from here."""
