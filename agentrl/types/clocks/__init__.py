"""Time in which a process lived: what stands still with it does not run out."""
