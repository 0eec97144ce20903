"""What a wrong output says: why it is rejected, where it is wrong, and the bug that it most likely comes from."""
