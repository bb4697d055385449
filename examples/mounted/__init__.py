"""The dashboard inside of web applications: the same pages under `/jobs` in four of them."""
