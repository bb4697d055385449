"""What can be said to Redis, by subject: `lifecycle`, `presence`, `inspect`, `admin`."""
