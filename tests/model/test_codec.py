"""Arguments and results arrive as they were sent, or sending them is an error."""

from __future__ import annotations

import asyncio
import enum
import gc
import inspect
import ipaddress
import math
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    Protocol,
    TypeVar,
    cast,
)

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    computed_field,
    field_validator,
)
from typing_extensions import TypedDict

from fennelq.errors import ConfigurationError, InvalidArguments, UnknownArgument
from fennelq.model.codec import NO_ARGUMENTS, CallCodec
from fennelq.model.hints import SENDABLE
from fennelq.model.outcome import Retry
from fennelq.model.result_codec import ANY_RESULT, ResultCodec
from tests.kit.apps import LocalApp

if TYPE_CHECKING:
    from decimal import Decimal as Later
    from decimal import Decimal as OnlyForCheckers

QUICK = settings(deadline=None, max_examples=25)
TASK = "shop:welcome"
T = TypeVar("T")

UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Size(enum.StrEnum):
    S = "s"


@dataclass
class Point:
    x: float
    label: bytes = b""
    tags: list[str] = field(default_factory=list[str])


@dataclass
class Spot:
    """As good as a Point in JSON."""

    x: float
    label: bytes = b""


class Order(BaseModel):
    id: int
    price: Decimal = Decimal("1.10")
    when: datetime | None = None
    point: Point | None = None


class PaidOrder(Order):
    card: str = "visa"


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"), extra="forbid")

    user_id: int

    @computed_field
    def double(self) -> int:
        return self.user_id * 2


class Reading(BaseModel):
    """A model keeps its own settings: what is infinite in it is written as null."""

    celsius: float


class OnlyReadAsX(BaseModel):
    value: int = Field(validation_alias="x")


class Box(BaseModel, Generic[T]):
    inside: T


class Address(TypedDict, total=False):
    street: str
    number: int


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Tree(BaseModel):
    children: list[Tree] = []


class Unsendable:
    pass


def codec_of(annotation: Any = None) -> CallCodec:
    """The codec of a function with one parameter `p`, of this type; without one when it is None."""

    def function(p: Any) -> None: ...

    function.__annotations__ = {} if annotation is None else {"p": annotation}
    return CallCodec(TASK, function)


def sent(annotation: Any, value: Any) -> Any:
    """What arrives at another process when `value` is passed as `p`."""
    return arrived(codec_of(annotation), codec_of(annotation), (value,), {})[0][0]


def returned(annotation: Any, value: Any) -> Any:
    """What comes back when a function of this return type answers `value`."""
    return returns_of(annotation).decode(returns_of(annotation).encode(value))


def returns_of(annotation: Any) -> ResultCodec[Any]:
    def function() -> None: ...

    function.__annotations__ = {} if annotation is None else {"return": annotation}
    return ResultCodec[Any].of(TASK, function)


def arrived(sender: CallCodec, receiver: CallCodec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return receiver.decode(sender.encode(args, kwargs))


def refusal(codec: CallCodec, *args: Any, **kwargs: Any) -> InvalidArguments:
    """The error that this call is refused with, in the caller."""
    with pytest.raises(InvalidArguments) as caught:
        codec.encode(args, kwargs)
    assert caught.value.task == TASK
    assert str(caught.value).startswith(TASK)
    return caught.value


def same(one: Any, other: Any) -> bool:
    """Equal and of the same type, and nan is nan."""
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return type(one) is type(other) and one == other


# What arrives


ints = st.integers() | st.integers(min_value=-(10**40), max_value=10**40)
texts = st.text()
moments = st.datetimes(
    min_value=datetime.fromisoformat("0001-01-03"),
    max_value=datetime.fromisoformat("9999-12-29"),
    timezones=st.sampled_from(
        [UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=11))]
    ),
)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | ints | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=6,
)
points = st.builds(Point, st.floats(allow_nan=False), st.binary(), st.lists(texts, max_size=3))
# In a model, its own settings count: bytes are text there, and floats are finite.
spots = st.builds(Point, st.floats(allow_nan=False, allow_infinity=False), texts.map(str.encode))
orders = st.builds(Order, id=ints, price=decimals, when=st.none() | moments, point=st.none() | spots)
camels = ints.map(lambda number: Camel.model_validate({"user-id": number}))

TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, ints),
    (str, texts),
    (float, st.floats()),
    (bool, st.booleans()),
    (bytes, st.binary()),
    (type(None), st.none()),
    (datetime, moments),
    (datetime, st.datetimes()),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas(timedelta(days=-9999), timedelta(days=9999))),
    (Decimal, decimals),
    (uuid.UUID, st.uuids()),
    (Path, texts.filter(lambda text: "\0" not in text).map(Path)),
    (ipaddress.IPv4Address, st.ip_addresses(v=4)),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Size, st.sampled_from(Size)),
    (Literal["a", 1, None], st.sampled_from(["a", 1, None])),
    (UserId, ints),
    (Point, points),
    (Order, orders),
    (Camel, camels),
    (Box[int], st.builds(Box[int], inside=ints)),
    (Address, st.fixed_dictionaries({}, optional={"street": texts, "number": ints})),
    (Pair, st.builds(Pair, ints, texts)),
    (list[int], st.lists(ints)),
    (list[Order], st.lists(orders, max_size=2)),
    (dict[str, float], st.dictionaries(texts, st.floats(allow_nan=False))),
    (dict[int, bytes], st.dictionaries(ints, st.binary())),
    (dict[uuid.UUID, Point], st.dictionaries(st.uuids(), points, max_size=2)),
    (dict[datetime, int], st.dictionaries(moments, ints, max_size=2)),
    (tuple[int, str], st.tuples(ints, texts)),
    (tuple[int, ...], st.lists(ints).map(tuple)),
    (set[str], st.sets(texts)),
    (frozenset[int], st.frozensets(ints)),
    (Sequence[str], st.lists(texts)),
    (Mapping[str, int], st.dictionaries(texts, ints)),
    (int | str, ints | texts),
    (float | int, ints | st.floats(allow_nan=False)),
    (datetime | str, moments | texts.filter(lambda text: not text[:1].isnumeric())),
    (uuid.UUID | None, st.none() | st.uuids()),
    (Order | None, st.none() | orders),
    (
        list[dict[str, tuple[int, datetime | None]]],
        st.lists(st.dictionaries(texts, st.tuples(ints, moments))),
    ),
    (dict[str, list[Any]], st.dictionaries(texts, st.lists(json_values, max_size=2), max_size=2)),
    (list, st.lists(json_values, max_size=3)),
    (dict, st.dictionaries(texts, json_values, max_size=3)),
    (tuple, st.lists(json_values, max_size=3).map(tuple)),
    (Any, json_values),
    (object, json_values),
    (None, json_values),
]


EVERY_TYPE = pytest.mark.parametrize(
    ("annotation", "values"), [pytest.param(*pair, id=str(pair[0] or "untyped")) for pair in TYPES]
)


@EVERY_TYPE
@QUICK
@given(data=st.data())
def test_a_value_arrives_and_returns_as_the_annotated_type(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)
    assert same(sent(annotation, value), value)
    assert same(returned(annotation, value), value)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_an_infinite_float_arrives_wherever_floats_are_annotated(number: float) -> None:
    assert same(sent(float, number), number)
    assert same(sent(list[float], [number])[0], number)
    assert same(sent(dict[str, float | None], {"a": number})["a"], number)
    assert same(sent(Point, Point(number)).x, number)


def test_a_number_has_as_many_digits_as_json_readers_take() -> None:
    huge = 7 * 10**4000
    assert sent(int, huge) == huge
    assert sent(None, huge) == huge
    assert "cannot be read back" in str(refusal(codec_of(int), 10**5000))


def test_bytes_need_not_be_text() -> None:
    everything = bytes(range(256))
    assert sent(bytes, everything) == everything
    assert sent(Point, Point(1, everything)).label == everything
    assert sent(dict[bytes, bytes], {everything: everything}) == {everything: everything}


def test_an_instance_of_a_subclass_arrives_as_what_is_annotated() -> None:
    order = sent(Order, PaidOrder(id=1))
    assert (type(order), order.id) == (Order, 1)
    assert same(sent(int, Level.HIGH), 2)
    assert same(sent(str, Size.S), "s")
    assert same(sent(Any, [Level.HIGH, Size.S]), [2, "s"])


def test_an_int_is_taken_for_a_float_and_arrives_as_one() -> None:
    assert same(sent(float, 3), 3.0)


def test_aliases_and_computed_fields_of_a_model_are_no_obstacle() -> None:
    assert sent(Camel, Camel.model_validate({"user-id": 7})).double == 14
    assert sent(list[Camel | None], [None, Camel.model_validate({"user-id": 7})])[1].user_id == 7


@settings(deadline=None, max_examples=100)
@given(
    st.tuples(ints, texts, json_values), st.fixed_dictionaries({}, optional={"c": json_values, "d": moments})
)
def test_a_whole_call_arrives(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def task(a: int, b: str, untyped: object, *, c: Any = None, d: datetime | None = None) -> None: ...

    del task.__annotations__["untyped"]
    codec = CallCodec(TASK, task)
    assert arrived(codec, CallCodec(TASK, task), args, kwargs) == (args, kwargs)


# How a call may be written


def of_one(a: int) -> None: ...


def every_kind(a: int, /, b: int = 2, *rest: str, c: bool = False, **others: float) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {}),
        ((1, 3), {}),
        ((1,), {"b": 3}),
        ((1, 3, "x", "y"), {}),
        ((1, 3, "x"), {"c": True}),
        ((1,), {"c": True, "b": 5}),
        ((1,), {"z": 1.5, "y": math.inf}),
        ((1,), {"a": 2.5, "rest": 3.5, "others": 4.5}),
    ],
)
def test_every_way_of_passing_arguments_is_kept(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    codec = CallCodec(TASK, every_kind)
    assert arrived(codec, CallCodec(TASK, every_kind), args, kwargs) == (args, kwargs)


def test_what_was_not_passed_is_not_sent_and_the_receivers_default_counts() -> None:
    assert codec_of_function(every_kind).encode((1,), {}) == b"[[1],{}]"

    def nothing(a: int = 1, *, b: Point | None = None) -> None: ...

    assert codec_of_function(nothing).encode((), {}) == NO_ARGUMENTS
    assert codec_of_function(nothing).decode(NO_ARGUMENTS) == ((), {})


def codec_of_function(function: Callable[..., Any]) -> CallCodec:
    return CallCodec(TASK, function)


# What is refused, in the caller


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "1"),
        (int, True),
        (int, 1.0),
        (str, 1),
        (str, b"x"),
        (float, "1"),
        (bytes, "x"),
        (datetime, "2024-01-01"),
        (uuid.UUID, "718b71ea-2871-44ca-8ace-fd434cfa1dcf"),
        (Colour, "red"),
        (Level, 1),
        (Decimal, 1),
        (Decimal, Decimal("NaN")),
        (list[int], (1,)),
        (list[int], [1, "2"]),
        (tuple[int, str], (1,)),
        (set[int], [1]),
        (dict[str, int], {"a": None}),
        (Literal["a"], "b"),
        (int | None, "x"),
        (Order, {"id": "x"}),
        (Point, {"x": 1.0}),
        (Address, {"street": "x", "town": "y"}),
        (Pair, (1, "x", 2)),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(annotation: Any, value: Any) -> None:
    error = refusal(codec_of(annotation), value)
    assert error.parameter == "p"
    assert "parameter 'p'" in str(error)


@pytest.mark.parametrize(
    "value",
    [
        datetime.now(UTC),
        date(2024, 1, 1),
        uuid.uuid4(),
        Decimal(1),
        b"bytes",
        (1, 2),
        {1},
        {1: "int key"},
        {"a": [{"b": datetime.now(UTC)}]},
        [math.nan],
        math.inf,
        Colour.RED,
        Point(1),
        Order(id=1),
        Unsendable(),
        print,
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("annotation", [None, Any, object, Any | None, dict[str, Any]], ids=str)
def test_without_a_type_only_json_values_are_taken(annotation: Any, value: Any) -> None:
    error = refusal(codec_of(annotation), {"deep": value} if annotation == dict[str, Any] else value)
    assert error.parameter == "p"


def test_the_refusal_names_what_json_lacks_and_what_to_do() -> None:
    text = str(refusal(codec_of(), {"order": [{"at": datetime.now(UTC)}]}))
    assert text == f"{TASK}, parameter 'p': JSON has no datetime: annotate the parameter with its type"
    assert "JSON has no int as a key" in str(refusal(codec_of(), {1: 2}))
    assert "JSON has no nan" in str(refusal(codec_of(dict), {"loss": math.nan}))


def test_a_refusal_names_the_place_inside_the_value() -> None:
    text = str(refusal(codec_of(list[Order]), [Order(id=1), {"id": 2, "price": "x"}]))
    assert "[1]['price']" in text
    assert text.endswith("got str")


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "reported"),
    [
        (every_kind, (), {}, "missing a required argument: 'a'"),
        (of_one, (1, 2), {}, "too many positional arguments"),
        (of_one, (1,), {"b": 2}, "unexpected keyword argument 'b'"),
        (of_one, (1,), {"a": 2}, "multiple values for argument 'a'"),
    ],
)
def test_a_missing_or_extra_argument_is_named_together_with_the_signature(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], reported: str
) -> None:
    text = str(refusal(CallCodec(TASK, function), *args, **kwargs))
    assert reported in text
    assert "it takes (" in text


def test_a_keyword_of_another_type_is_refused_by_its_own_name() -> None:
    codec = CallCodec(TASK, every_kind)
    assert refusal(codec, 1, c="x").parameter == "c"
    assert refusal(codec, 1, others_too="x").parameter == "others_too"
    assert refusal(codec, 1, 2, "rest", 3).parameter == "rest"
    assert refusal(codec, "x").parameter == "a"


def test_what_a_model_cannot_read_back_does_not_leave() -> None:
    for annotation, value in (
        (Reading, Reading(celsius=math.nan)),
        (list[Reading], [Reading(celsius=math.inf)]),
        (OnlyReadAsX, OnlyReadAsX.model_validate({"x": 1})),
        (dict[tuple[int, int], str], {(1, 2): "x"}),
    ):
        error = refusal(codec_of(annotation), value)
        assert error.parameter == "p"
        assert "cannot be read back" in str(error)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (datetime | str, "0"),
        (float | str, math.nan),
        (bytes | str, "abc"),
        (Point | Spot, Spot(1.5)),
        (list[datetime | str], ["0"]),
        (dict[str, list[int] | tuple[int, ...]] | None, {"a": (1, 2)}),
    ],
)
def test_a_value_that_would_arrive_as_another_member_of_its_union_is_refused(
    annotation: Any, value: Any
) -> None:
    error = refusal(codec_of(annotation), value)
    assert error.parameter == "p"
    assert "would arrive as" in str(error)


def test_the_members_of_a_union_that_json_distinguishes_all_arrive() -> None:
    plain: Any = int | float | str | list[int] | dict[str, int] | None
    for value in (1, 1.5, "1", None, [1], {"a": 1}):
        assert same(sent(plain, value), value)
    classes: Any = Order | Point | Colour
    for member in (Order(id=1), Point(1.5), Colour.RED):
        assert same(sent(classes, member), member)


def test_a_value_that_cannot_be_written_is_refused_by_name() -> None:
    broken = Order.model_construct(id=1, price=cast("Any", object()))
    assert refusal(codec_of(Order), broken).parameter == "p"
    assert refusal(codec_of(str), "half a surrogate: \ud83d").parameter == "p"
    assert refusal(codec_of(), ["\ud83d"]).parameter == "p"

    def two(a: int, b: Callable[[], None]) -> None: ...

    assert refusal(CallCodec(TASK, two), 1, print).parameter == "b"
    assert refusal(CallCodec(TASK, two), 1, b=print).parameter == "b"


def test_what_is_nested_too_deeply_or_holds_itself_is_refused() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    circle: list[Any] = []
    circle.append(circle)
    tree = Tree()
    for _ in range(250):
        tree = Tree(children=[tree])
    assert "nested so deeply" in str(refusal(codec_of(), deep))
    assert "nested so deeply" in str(refusal(codec_of(), {"a": circle}))
    assert refusal(codec_of(Tree), tree)


# Annotations


def test_an_annotation_that_does_not_describe_data_is_named_at_the_first_call() -> None:
    def task(a: int, db: Unsendable) -> None: ...

    error = refusal(CallCodec(TASK, task), 1, Unsendable())
    assert error.parameter == "db"
    assert "not one of data" in str(error)
    with pytest.raises(InvalidArguments):
        CallCodec(TASK, task).decode(b"[[1,2],{}]")


@pytest.mark.parametrize("annotation", ["Nowhere", "uuid.Nowhere", "'int' | None", "not python ("])
def test_an_annotation_that_cannot_be_resolved_is_refused_when_the_task_is_declared(annotation: str) -> None:
    def task(p: object) -> None: ...

    task.__annotations__["p"] = annotation
    with pytest.raises(
        ConfigurationError, match=r"shop:welcome: an annotation cannot be resolved.*TYPE_CHECKING"
    ):
        CallCodec(TASK, task)
    with pytest.raises(ConfigurationError):
        ResultCodec.of(TASK, task)


# What arrives from strangers


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return b"123456789012345678901234567890"


@settings(deadline=None, max_examples=300)
@given(
    raw=st.binary(max_size=60)
    | json_values.map(_json)
    | st.tuples(st.lists(json_values, max_size=4), st.dictionaries(texts, json_values, max_size=3)).map(_json)
)
def test_whatever_the_payload_is_reading_it_gives_a_call_or_invalid_arguments(raw: bytes) -> None:
    codec = CallCodec(TASK, every_kind)
    for _ in range(2):
        try:
            args, kwargs = codec.decode(raw)
        except InvalidArguments:
            continue
        every_kind(*args, **kwargs)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"[[],{}",
        b"[{},[]]",
        b'["ab",{}]',
        b'[[],"ab"]',
        b"[[],{},{}]",
        b"[[]]",
        b"\xff\xfe",
        b"[" * 10_000,
        b"[[" + b"[" * 300 + b"]" * 300 + b"],{}]",
        b"[[" + b"1" * 5000 + b"],{}]",
        b'[["\\ud800"],{}]',
        b'[[1],{"__class__":1}]',
        b"[[1]," + b'{"a":' * 300 + b"1" + b"}" * 300 + b"]",
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_a_payload_that_does_not_fit_the_function_is_refused(raw: bytes) -> None:
    def task(a: dict[str, Any]) -> None: ...

    codec = CallCodec(TASK, task)
    with pytest.raises(InvalidArguments):
        codec.decode(raw)
    codec.encode(({},), {})
    codec.decode(b"[[{}],{}]")
    with pytest.raises(InvalidArguments):
        codec.decode(raw)


def test_whatever_a_models_validator_raises_the_payload_is_refused() -> None:
    class Touchy(BaseModel):
        value: int

        @field_validator("value")
        @classmethod
        def _fails(cls, value: int) -> int:
            raise KeyError(value)

    codec = codec_of(Touchy)
    for _ in range(2):
        with pytest.raises(InvalidArguments, match="cannot be read: KeyError"):
            codec.decode(b'[[{"value":1}],{}]')


def test_an_unknown_argument_is_distinguished_from_one_of_a_wrong_type() -> None:
    def welcome(user: int, /, greeting: str, *, loud: bool = False) -> str:
        return greeting

    calls, takes = (
        CallCodec(TASK, welcome),
        "(user: 'int', /, greeting: 'str', *, loud: 'bool' = False) -> 'str'",
    )
    unknown = {
        b'[[1,"hi"],{"colour":1}]': f"{TASK}, parameter 'colour': the task has no such parameter; it takes {takes}",
        b'[[1,"hi"],{"user":1}]': f"{TASK}, parameter 'user': the task has no such parameter; it takes {takes}",
        b'[[1,"hi",true],{}]': f"{TASK}: too many positional arguments (3); it takes {takes}",
        b'[[1],{"colour":1}]': f"{TASK}, parameter 'colour': the task has no such parameter; it takes {takes}",
    }
    for raw, sentence in unknown.items():
        with pytest.raises(UnknownArgument) as refused:
            calls.decode(raw)
        assert str(refused.value) == sentence
    for raw in (b"[[1],{}]", b"[[1,2],{}]", b'[["x","hi"],{}]', b'[[1,"hi"],{"greeting":"ho"}]'):
        with pytest.raises(InvalidArguments) as other:
            calls.decode(raw)
        assert type(other.value) is InvalidArguments


def test_a_function_that_takes_everything_knows_every_argument() -> None:
    def log(*words: str, **facts: int) -> None: ...

    assert CallCodec(TASK, log).decode(b'[["a","b"],{"c":1}]') == (("a", "b"), {"c": 1})
    with pytest.raises(InvalidArguments) as refused:
        CallCodec(TASK, log).decode(b'[["a"],{"c":"x"}]')
    assert type(refused.value) is InvalidArguments


def test_calls_of_different_shapes_are_distinguished_in_any_order() -> None:
    def task(a: int = 0, b: str = "", *, c: int = 0) -> None: ...

    codec = CallCodec(TASK, task)
    calls: list[tuple[bytes, Any]] = [
        (b"[[1],{}]", ((1,), {})),
        (b'[[1,"x"],{}]', ((1, "x"), {})),
        (b"[[],{}]", ((), {})),
        (b'[[],{"b":"x","a":1}]', ((), {"b": "x", "a": 1})),
        (b'[[1],{"c":3}]', ((1,), {"c": 3})),
    ]
    for raw, call in calls:
        for _ in range(3):
            assert codec.decode(raw) == call


def test_the_shapes_that_are_remembered_are_bounded() -> None:
    def task(*rest: int, **others: int) -> None: ...

    codec = CallCodec(TASK, task)
    before = adapters()
    for count in range(300):
        assert codec.decode(codec.encode((1,) * count, {})) == ((1,) * count, {})
        assert codec.decode(codec.encode((), {f"k{count}": 1})) == ((), {f"k{count}": 1})
    assert adapters() - before <= 256


def adapters() -> int:
    """How many type adapters this process keeps."""
    gc.collect()
    return sum(type(thing) is TypeAdapter for thing in gc.get_objects())


# Results


def test_a_result_is_plain_json() -> None:
    assert ResultCodec[Any](Point).encode(Point(1.5, b"\xff")) == b'{"x":1.5,"label":"_w==","tags":[]}'
    assert ResultCodec[Any](list[int]).encode((1, 2)) == b"[1,2]"
    assert ANY_RESULT.encode({"a": None}) == b'{"a":null}'
    assert ANY_RESULT.decode(b'{"a":[1.5,"x"]}') == {"a": [1.5, "x"]}


def test_a_task_annotated_with_none_has_no_result() -> None:
    def task() -> None: ...

    returns = ResultCodec[Any].of(TASK, task)
    assert returns.is_none
    assert returns.encode(None) == b""
    assert returns.decode(b"") is None
    with pytest.raises(ValueError, match=r"^shop:welcome returned int, but its annotation is None$"):
        returns.encode(1)


HERE = __name__
ONLY_JSON = (
    "which cannot be sent: without a return annotation only JSON values can be: annotate what it returns"
)
INTEGER = "Input should be a valid integer"
MISFITS: list[tuple[Any, Any, str]] = [
    # Another type than annotated, and where in the value
    (str, 5, "returned int, but its annotation is str"),
    (int, "many", "returned str, but its annotation is int"),
    (type(None), 5, "returned int, but its annotation is None"),
    (int | None, [], "returned list, but its annotation is int | None"),
    (int | str, [], "returned list, but its annotation is int | str"),
    (Order, 5, f"returned int, but its annotation is {HERE}.Order"),
    (Order, {"price": 1}, f"returned dict without 'id', but its annotation is {HERE}.Order"),
    (
        list[int],
        [1, "x"],
        f"returned str in [1], but its annotation is list[int]: {INTEGER}, unable to parse string as an integer",
    ),
    (
        dict[str, list[Order]],
        {"a": [{"id": []}]},
        f"returned list in ['a'][0]['id'], but its annotation is dict[str, list[{HERE}.Order]]: {INTEGER}",
    ),
    (list[int | str], [1, []], f"returned list in [1], but its annotation is list[int | str]: {INTEGER}"),
    (Literal["a"], "b", "returned str, but its annotation is Literal['a']: Input should be 'a'"),
    # Without an annotation
    (None, datetime.now(UTC), f"returned a datetime object, {ONLY_JSON}, like -> datetime"),
    (None, {"a": [1, {2}]}, f"returned a set object in ['a'][1], {ONLY_JSON}"),
    (None, {1: "a"}, f"returned int as a key of a dict, {ONLY_JSON}, like -> dict[int, …]"),
    (None, Unsendable(), f"returned an Unsendable object, {ONLY_JSON}, like -> Unsendable"),
    # What is never a result
    (None, Retry(), "returned Retry instead of raising it: write raise Retry(…)"),
    (str, Retry, "returned Retry instead of raising it: write raise Retry(…)"),
    (list[Any], [ValueError("x")], "returned ValueError instead of raising it: write raise ValueError(…)"),
    (
        int,
        iter([1]),
        "returned a list_iterator object, which cannot be sent: return a list of what it yields",
    ),
    # What cannot be written, or read back
    (
        dict[str, Any],
        {"conn": Unsendable()},
        f"returned an Unsendable object in ['conn'], which cannot be sent: {SENDABLE}",
    ),
    (object, Unsendable(), f"returned an Unsendable object, which cannot be sent: {SENDABLE}"),
    (
        Order,
        Order.model_construct(id=cast("Any", "x")),
        "returned Order, which cannot be written as JSON: "
        "one of its fields has a value that does not fit its annotation",
    ),
    (
        Reading,
        Reading(celsius=math.nan),
        f"returned Reading, whose JSON cannot be read back as {HERE}.Reading in ['celsius']: "
        "Input should be a valid number",
    ),
    (
        OnlyReadAsX,
        OnlyReadAsX.model_validate({"x": 1}),
        f"returned OnlyReadAsX, whose JSON cannot be read back as {HERE}.OnlyReadAsX: 'x' is missing",
    ),
]


@pytest.mark.parametrize(("annotation", "value", "sentence"), MISFITS, ids=range(len(MISFITS)))
def test_a_result_that_cannot_be_read_back_is_a_value_error_with_the_value_and_its_place(
    annotation: Any, value: Any, sentence: str
) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole text is compared below
        returns_of(annotation).encode(value)
    assert str(refused.value) == f"{TASK} {sentence}"
    assert refused.value.__cause__ is None


async def test_a_coroutine_that_was_returned_is_named_and_closed() -> None:
    async def fetch() -> int:
        return 1

    forgotten = fetch()
    with pytest.raises(
        ValueError, match=r"returned a coroutine: write `return await .*fetch\(…\)`, in an async def task$"
    ):
        returns_of(int).encode(forgotten)
    assert inspect.getcoroutinestate(forgotten) == inspect.CORO_CLOSED


def test_what_a_validator_of_the_user_raises_is_the_cause_of_the_refusal() -> None:
    def broken(value: Any) -> Any:
        raise KeyError("no such rate")

    with pytest.raises(
        ValueError,
        match=r"^shop:welcome returned int, which cannot be checked or written: KeyError: 'no such rate'$",
    ) as refused:
        returns_of(Annotated[int, AfterValidator(broken)]).encode(1)
    assert isinstance(refused.value.__cause__, KeyError)


def test_the_sentence_about_a_result_is_bounded_whatever_the_value_is() -> None:
    class Long:
        pass

    Long.__name__ = "L" * 10_000
    values: list[Any] = [Long(), {"k" * 10_000: Long()}, [[Long()]] * 100]
    for annotation in (None, int, dict[str, Any], Literal["a" * 10_000]):
        for value in values:
            with pytest.raises(ValueError) as refused:  # noqa: PT011 - its length counts
                returns_of(annotation).encode(value)
            assert len(str(refused.value)) < 1000


class Interface(Protocol):
    def speak(self) -> None: ...


@pytest.mark.parametrize(
    ("annotation", "culprit"),
    [
        (Unsendable, Unsendable),
        (list[Unsendable], Unsendable),
        (dict[str, Unsendable | None], Unsendable),
        (Interface, Interface),
        (Exception, Exception),
        (Callable[[int], int], Callable[[int], int]),
        (Awaitable[int], Awaitable[int]),
        (type[Unsendable], type[Unsendable]),
    ],
    ids=str,
)
def test_a_type_whose_values_cannot_be_sent_is_refused_before_any_call(annotation: Any, culprit: Any) -> None:
    shown = inspect.formatannotation(culprit)
    with pytest.raises(ConfigurationError) as refused:
        codec_of(annotation).check_types()
    assert (
        str(refused.value) == f"{TASK}, parameter 'p' is annotated {shown}, which cannot be sent: {SENDABLE}"
    )
    with pytest.raises(ConfigurationError) as refused:
        returns_of(annotation).check_type()
    assert str(refused.value) == f"{TASK}: its result is annotated {shown}, which cannot be sent: {SENDABLE}"


@pytest.mark.parametrize(
    "annotation", [pytest.param(pair[0], id=str(pair[0] or "untyped")) for pair in TYPES]
)
def test_a_type_of_data_is_never_refused(annotation: Any) -> None:
    codec_of(annotation).check_types()
    returns_of(annotation).check_type()


def test_a_type_that_is_not_complete_yet_is_not_refused() -> None:
    class Early(BaseModel):
        later: Later

    codec_of(list[Early]).check_types()
    returns_of(Early).check_type()
    codec_of(Annotated[Unsendable, PlainValidator(lambda _: Unsendable())]).check_types()


@given(raw=st.binary(max_size=40) | json_values.map(_json))
def test_a_result_that_cannot_be_read_is_a_value_error(raw: bytes) -> None:
    for returns in (ResultCodec[Any](Order), ResultCodec[Any](list[int])):
        try:
            returns.decode(raw)
        except ValueError:
            pass


# All of it, where users meet it


async def test_a_call_is_refused_at_delay_before_anything_is_sent() -> None:
    app = LocalApp("shop", redis_url="redis://127.0.0.1:1", enqueue_timeout=0.001)

    async def note(when: Any, order: Order) -> None: ...

    task = app.task(note)
    with pytest.raises(InvalidArguments, match=r"parameter 'when': JSON has no datetime"):
        await task.delay(datetime.now(UTC), Order(id=1))
    with pytest.raises(InvalidArguments, match=r"parameter 'order'"):
        await asyncio.to_thread(task.sync.delay, "now", cast("Any", "no order"))
    with pytest.raises(InvalidArguments, match=r"missing a required argument: 'order'"):
        task.job(*cast("Any", ["now"]))


def test_a_name_that_is_known_to_type_checkers_only_is_refused_when_the_task_is_declared() -> None:
    app = LocalApp("shop")

    def note(price: OnlyForCheckers) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"name 'OnlyForCheckers' is not defined.*under TYPE_CHECKING"
    ):
        app.task(note)
