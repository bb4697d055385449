"""The settings of `django-admin startproject`, without those that this example does not use."""

from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "an example has no secrets"
DEBUG = True
ALLOWED_HOSTS: list[str] = []
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# shop/settings.py, at its end
import os
import sys
import tempfile

INSTALLED_APPS += ["orders"]
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"  # prints mails instead of sending them

if "test" in sys.argv:
    # Tests get a server of their own, which is removed with its folder.
    test_server = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    os.environ["FENNELQ_REDIS_URL"] = f"embedded://{test_server.name}"
