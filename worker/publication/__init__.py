"""What a staging branch holds, and its publication on another branch."""
