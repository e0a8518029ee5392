"""``verify``: judge a kernel that somebody else wrote, without running its code in this process."""
