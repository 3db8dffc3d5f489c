"""What is done with a group as a whole, once its episodes have ended."""
