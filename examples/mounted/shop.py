"""The app that is shown, and the dashboard for it. Each of the other files mounts it in another framework."""

from __future__ import annotations

from fennelq import App
from fennelq.web import Proxy, dashboard

app = App("shop")


@app.task(queue="mail")
async def welcome(user_id: int) -> str:
    """Greet a user."""
    return f"welcome, user {user_id}"


# The proxy in front has signed the user in. `Basic(…)`, `Token(…)` or a function of yours can take its place.
jobs = dashboard(
    app, auth=Proxy("X-Forwarded-User", trusted=["127.0.0.1", "10.0.0.0/8"]), hosts=["jobs.example.com"]
)
