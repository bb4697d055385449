"""What is injected is found out when a task is registered: mistakes are errors there, and none of it is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import fastapi
import pytest

from fennelq import App, ConfigurationError, Depends, InvalidArguments, Shared, UnknownArgument, injected
from tests.kit.apps import LocalApp

if TYPE_CHECKING:
    from decimal import Decimal


class Db: ...


def get_db() -> Db:
    return Db()


async def get_user() -> str:
    return "ann"


DbDep = Annotated[Db, Depends(get_db)]


@pytest.fixture
def app() -> App:
    return LocalApp("shop", redis_url="redis://127.0.0.1:1/0")


def refusal(app: App, function: Callable[..., Any]) -> str:
    """Why this function cannot be a task."""
    with pytest.raises(ConfigurationError) as refused:
        app.task(name="shop:charge")(function)
    assert "shop:charge" not in app.tasks
    return str(refused.value)


# Registration: what is refused, with its path


def test_a_provider_that_needs_itself_is_refused(app: App) -> None:
    def session(db: Any = Depends(get_db)) -> Db:
        return Db()

    def pool(session: Any = Depends(session)) -> Db:
        return Db()

    session.__defaults__ = (Depends(pool),)

    async def charge(pool: Any = Depends(pool)) -> None: ...

    assert refusal(app, charge) == (
        "shop:charge → pool → session → pool: a provider cannot need its own value"
    )


def test_a_parameter_of_a_provider_with_neither_provider_nor_default_is_refused(app: App) -> None:
    def make_pool(url: str, size: int = 3) -> Db:
        return Db()

    def session(pool: Any = Shared(make_pool)) -> Db:
        return Db()

    async def charge(db: Any = Depends(session)) -> None: ...

    assert refusal(app, charge) == (
        "shop:charge → session → make_pool: parameter 'url' has neither a provider nor a default. Give it one of them, "
        "like url=Depends(…), or make the value in a provider without parameters"
    )


def test_a_parameter_that_fastapi_fills_from_a_request_is_refused(app: App) -> None:
    def page(limit: int = fastapi.Query(10)) -> int:
        return limit

    async def charge(page: Any = fastapi.Depends(page)) -> None: ...

    assert refusal(app, charge) == (
        "shop:charge → page: parameter 'limit' is filled from a request by FastAPI, and a job has no request"
    )


def test_a_shared_value_that_needs_one_of_a_job_is_refused(app: App) -> None:
    def make_pool(db: Any = Depends(get_db)) -> Db:
        return Db()

    async def charge(pool: Any = Shared(make_pool)) -> None: ...

    assert refusal(app, charge) == (
        "shop:charge → make_pool: a Shared value outlives the job, so it cannot need Depends(get_db), "
        "which is made for one job: write Shared(get_db)"
    )


def test_a_parameter_with_two_providers_or_none_is_refused(app: App) -> None:
    async def two(db: DbDep = Depends(get_db)) -> None: ...

    async def both(db: Annotated[Db, Depends(get_db), Shared(get_db)]) -> None: ...

    async def none(order: int = injected) -> None: ...

    assert "parameter 'db' has two providers, as its default and in Annotated" in refusal(app, two)
    assert "parameter 'db' has two providers in Annotated" in refusal(app, both)
    assert "parameter 'order' has the default injected, and no provider" in refusal(app, none)


def test_a_parameter_without_a_name_cannot_be_injected(app: App) -> None:
    async def charge(db: Any = Depends(get_db), /) -> None: ...

    assert "parameter 'db' is injected by its name" in refusal(app, charge)


def test_an_annotation_that_cannot_be_resolved_is_refused_where_it_matters(app: App) -> None:
    def price(unit: Decimal | None = None) -> str:
        return "1.50"

    def broken(db: Annotated[Decimal, Depends(get_db)]) -> None: ...

    async def charge(price: str = Depends(price)) -> str:
        return price

    async def fail(broken: Any = Depends(broken)) -> None: ...

    assert "shop:charge → broken: parameter 'db' has an annotation that cannot be resolved" in refusal(
        app, fail
    )
    app.task(charge)


def test_a_provider_without_a_hash_is_refused(app: App) -> None:
    class Maker:
        __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

        def __call__(self) -> int:
            return 1

    async def charge(value: int = Depends(Maker())) -> None: ...

    assert "this provider is an object without a hash" in refusal(app, charge)


async def test_what_is_no_provider_is_refused_where_it_is_written(app: App) -> None:
    async def charge() -> None: ...

    for wrong in (3, None, "get_db", get_user()):
        provider: Any = wrong
        with pytest.raises(ConfigurationError, match="without calling it"):
            Depends(provider)
    with pytest.raises(ConfigurationError, match="a function, not a task"):
        Shared(app.task(charge))


def test_a_lifespan_is_a_generator_that_gets_the_app() -> None:
    async def made(app: App) -> Db:
        return Db()

    async def needy(app: App, url: str) -> AsyncIterator[None]:
        yield

    for wrong in (3, made):
        lifespan: Any = wrong
        with pytest.raises(ConfigurationError, match=r"async generator|a generator: async def resources"):
            App("shop", lifespan=lifespan)
    lifespan = needy
    with pytest.raises(ConfigurationError, match="the lifespan of shop → needy: parameter 'url' has neither"):
        App("shop", lifespan=lifespan)


# Calls


async def charge(order: int, db: Db = Depends(get_db), *, user: Annotated[str, Depends(get_user)]) -> int:
    return order


def test_what_is_injected_does_not_travel_and_cannot_be_passed(app: App) -> None:
    task: Any = app.task(charge)
    assert task.calls.encode((7,), {}) == b"[[7],{}]"
    with pytest.raises(InvalidArguments) as refused:
        task.job(7, db=Db())
    assert refused.value.parameter == "db"
    assert str(refused.value) == f"{task.name}, parameter 'db': the worker injects it: leave it out"
    with pytest.raises(InvalidArguments, match=r"it takes \(order: int\); the worker injects db, user"):
        task.job(7, Db())
    with pytest.raises(InvalidArguments, match="the worker injects it"):
        app.describe(task.name, 7, _kwargs={"user": "bob"})
    with pytest.raises(UnknownArgument):
        task.calls.decode(b'[[7],{"user":"bob"}]')


def test_what_is_injected_cannot_be_passed_among_any_other_arguments(app: App) -> None:
    def spread(db: DbDep, *paths: str, **sizes: int) -> None: ...

    task: Any = app.task(spread)
    with pytest.raises(InvalidArguments, match="the worker injects it"):
        task.job("a", db=3)


async def test_a_plain_call_without_an_injected_argument_names_it(app: App) -> None:
    task: Any = app.task(charge)
    with pytest.raises(TypeError) as missing:
        task(7)
    assert str(missing.value) == (
        "charge() is missing 'db', which only a worker injects: pass it to a plain call, charge(…, db=…)"
    )
    with pytest.raises(TypeError, match="'user', which only a worker injects"):
        task(7, Db())
    with pytest.raises(TypeError, match="takes from 1 to 2 positional arguments but 3"):
        await task(1, 2, 3, user="x")
    assert await task(7, Db(), user="ann") == 7


def test_a_plain_call_in_a_thread_needs_its_arguments_as_well_and_takes_a_default_of_its_own(
    app: App,
) -> None:
    def resize(db: Annotated[Db | None, Depends(get_db)] = None, size: Any = Depends(get_db)) -> Any:
        return db

    task: Any = app.task(resize)
    with pytest.raises(TypeError, match=r"resize.* is missing 'size'"):
        task()
    assert task(size=1) is None


# Overrides


def test_overrides_nest_and_end_also_when_the_block_fails(app: App) -> None:
    def fake() -> Db:
        return Db()

    def other() -> Db:
        return Db()

    task: Any = app.task(charge)

    def provider() -> Any:
        return task.injection.recipe.on_loop[0].make

    with app.overrides({get_db: fake}):
        assert provider() is fake
        with suppress(RuntimeError), app.overrides({get_db: other}):
            assert provider() is other
            raise RuntimeError
        assert provider() is fake
        late: Any = app.task(name="shop:late")(charge_too)
        assert late.injection.recipe.on_loop[0].make is fake
        assert task.options(queue="mail").injection.recipe.on_loop[0].make is fake
    assert provider() is get_db
    assert late.injection.recipe.on_loop[0].make is get_db


async def charge_too(db: Db = Depends(get_db)) -> None: ...


def test_overrides_that_end_in_another_order_leave_the_others(app: App) -> None:
    def fake() -> Db:
        return Db()

    def other() -> Db:
        return Db()

    task: Any = app.task(charge)
    first, second = app.overrides({get_db: fake}), app.overrides({get_db: other})
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert task.injection.recipe.on_loop[0].make is other
    second.__exit__(None, None, None)
    assert task.injection.recipe.on_loop[0].make is get_db


def test_an_override_that_would_do_nothing_is_refused(app: App) -> None:
    app.task(charge)

    def get_bd() -> Db:
        return Db()

    with pytest.raises(
        ConfigurationError, match=r"no task of shop has the provider get_bd: did you mean 'get_db'\?"
    ):
        app.overrides({get_bd: get_db})
    value: Any = Db()
    with pytest.raises(
        ConfigurationError, match=r"takes a provider, not a Db object: .* write get_db: lambda: value"
    ):
        app.overrides({get_db: value})


def test_an_override_that_cannot_be_filled_is_refused_and_changes_nothing(app: App) -> None:
    def needy(url: str) -> Db:
        return Db()

    task: Any = app.task(charge)
    with pytest.raises(ConfigurationError, match="→ needy: parameter 'url'"), app.overrides({get_db: needy}):
        pass
    assert task.injection.recipe.on_loop[0].make is get_db


def test_a_shared_value_is_another_one_while_what_it_is_made_of_is_overridden(app: App) -> None:
    def make_pool(url: Any = Shared(get_db)) -> Db:
        return Db()

    async def charge(pool: Any = Shared(make_pool)) -> None: ...

    task: Any = app.task(charge)

    def key() -> Any:
        return task.injection.recipe.on_loop[-1].key

    real = key()
    with app.overrides({get_db: lambda: Db()}):
        assert key() != real
    assert key() == real


# Processes without a loop


def test_an_async_provider_of_a_function_that_runs_without_a_loop_is_refused(app: App) -> None:
    def crunch(user: Any = Depends(get_user), db: Any = Shared(get_db)) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"shop:crunch → get_user: .* isolation=\"process\" .* make it a def"
    ):
        app.injections.of("shop:crunch", crunch, process=True)
    injection = app.injections.of("shop:crunch", contextmanager_only, process=True)
    assert injection is not None
    assert [step.name for step in injection.recipe.in_thread] == ["get_db"]
    assert injection.recipe.on_loop == ()


def contextmanager_only(db: Any = Shared(get_db)) -> None: ...
