"""What the terminal and the files say of one subject each."""
