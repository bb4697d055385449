"""The app that is shown, its dashboard, and its HTTP API alone. Each of the other files mounts both in another
framework."""

from __future__ import annotations

from fennelq import App
from fennelq.web import Proxy, api, dashboard

app = App("shop")


@app.task(queue="mail")
async def welcome(user_id: int) -> str:
    """Greet a user."""
    return f"welcome, user {user_id}"


# The proxy in front has signed the user in. `Basic(…)`, `Token(…)` or a function of yours can take its place.
auth = Proxy("X-Forwarded-User", trusted=["127.0.0.1", "10.0.0.0/8"])
jobs = dashboard(app, auth=auth, hosts=["jobs.example.com"])

# The dashboard has the HTTP API too. This is the API without the pages.
programs = api(app, auth=auth, hosts=["jobs.example.com"])
