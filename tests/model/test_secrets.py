"""Which names and types are those of secrets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypedDict

import pydantic
import pytest
from pydantic import BaseModel, Field, SecretBytes, SecretStr

from fennelq import Secret
from fennelq.model.secrets import RULES, Marked, is_secret, marked, rule_of

SECRET = [
    "password",
    "Password",
    "PASSWORD2",
    "db_password",
    "dbPassword",
    "userpassword",
    "passwords",
    "passwd",
    "pass",
    "pwd",
    "token",
    "access_token",
    "accessToken",
    "accesstoken",
    "refresh-token",
    "api_key",
    "apiKey",
    "APIKey",
    "apikey",
    "X-Api-Key",
    "api.key",
    "client_secret",
    "clientSecret",
    "Authorization",
    "auth",
    "Cookie",
    "Set-Cookie",
    "card",
    "cardNumber",
    "credit_card",
    "IBAN",
    "iban",
    "private_key",
    "credentials",
    "jwt",
    "pin",
    "cvv",
]
PLAIN = [
    "user_id",
    "key",
    "name",
    "cardinality",
    "discard",
    "author",
    "authority",
    "tokenizer",
    "secretary",
    "passenger",
    "pass_count",
    "spin",
    "pin_color",
    "compass",
    "keyboard",
    "monkey",
    "apiary",
    "api_version",
    "",
    "_",
    "日本語",
    "\x1b[2J",
]


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets_are_found(name: str) -> None:
    assert is_secret(name, "hunter2")


@pytest.mark.parametrize("name", PLAIN)
def test_other_names_are_not(name: str) -> None:
    assert not is_secret(name, "hunter2")


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("token", None, False),
        ("password", True, False),
        ("max_tokens", 500, False),
        ("maxTokens", 0.5, False),
        ("password_length", 12, False),
        ("max_tokens", "500", True),
        ("card_number", 4111_1111_1111_1111, True),
        ("otp", 123456, True),
        ("cards", ["4111"], True),
    ],
)
def test_a_measure_of_secrets_and_no_value_at_all_are_no_secrets(
    name: str, value: object, secret: bool
) -> None:
    assert is_secret(name, value) is secret


@pytest.mark.parametrize("written", ["staffNumber", "staff_number", "STAFF-NUMBER"])
@pytest.mark.parametrize(
    "name", ["staffNumber", "staff_number", "Staff-Number", "old_staff_number", "staffnumber"]
)
def test_a_name_of_the_user_stands_for_all_its_spellings(written: str, name: str) -> None:
    assert is_secret(name, "x", (*RULES, rule_of(written)))
    assert not is_secret("number_of_staff", "x", (*RULES, rule_of(written)))


class Login(BaseModel):
    user: str
    word: SecretStr
    hint: Annotated[str, "about"] = ""
    pin_code: Secret[str] = ""
    renamed: Secret[str] = Field("", alias="shownAs")
    again: Login | None = None


@dataclass
class Account:
    owner: str
    login: Login
    sesame: Secret[str]


class Options(TypedDict):
    sesame: Secret[str]
    size: int


class Pair(NamedTuple):
    name: str
    sesame: Secret[str]


class Plainly(NamedTuple):
    name: str
    size: int


class WithToken(NamedTuple):
    name: str
    token: str


NAMES = frozenset({"word", "pin_code", "renamed", "shownAs"})


@pytest.mark.parametrize(
    ("hint", "found"),
    [
        (str, Marked()),
        (Any, Marked()),
        (Annotated[str, "about"], Marked()),
        (Secret[str], Marked(whole=True)),
        (SecretStr, Marked(whole=True)),
        (SecretBytes | None, Marked(whole=True)),
        (pydantic.Secret[int], Marked(whole=True)),
        (list[Secret[str]], Marked(whole=True)),
        (dict[str, Secret[int] | None], Marked(whole=True)),
        (Annotated[Secret[str], Field(max_length=3)], Marked(whole=True)),
        (Login, Marked(names=NAMES)),
        (list[Login | None], Marked(names=NAMES)),
        (dict[str, Account], Marked(names=NAMES | {"sesame"})),
        (Options, Marked(names=frozenset({"sesame"}))),
        (Pair, Marked(whole=True)),
        (list[WithToken], Marked(whole=True)),
        (Plainly, Marked()),
    ],
    ids=lambda value: "" if isinstance(value, Marked) else str(value),
)
def test_types_say_what_is_secret(hint: Any, found: Marked) -> None:
    assert marked(hint) == found


def test_a_marked_type_is_the_type_itself_for_people_and_tools() -> None:
    assert "secret" in repr(Secret[str])
    assert pydantic.TypeAdapter(Secret[str]).validate_python("x") == "x"
