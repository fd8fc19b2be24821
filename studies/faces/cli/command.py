"""Commands of tunebench: what every one of them refuses, and the options that a declaration gives it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, ClassVar, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandInfo

Function = TypeVar("Function", bound=Callable[..., None])

GIVEN = "given"
"""The parameter of a command that takes the options of a declaration which were given, by name."""


_WHOLE = 1000
"""Characters that no first sentence has."""


class Command(TyperCommand):
    """A command none of whose options and arguments may be an empty text; see `require_said`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, as they were given and before anything is made of them.

        Raises:
            UserError: one is empty.
        """
        from tunebench.tuner.empty import require_said

        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in () if ctx.resilient_parsing else self.params:
            is_option = parameter.param_type_name == "option"
            name = parameter.opts[0] if is_option else (parameter.metavar or parameter.name.upper()).strip("[].")
            require_said(name, given.get(parameter.name))
        return super().parse_args(ctx, args)


class Commands(TyperGroup):
    """The commands, each of which is put together when it is asked for: declarations take time to import."""

    groups: ClassVar[Mapping[str, Sequence[str]]]
    """The titles under which the help lists commands, the last of which also has the commands that are groups."""
    functions: ClassVar[Mapping[str, Callable[..., None]]]

    @property
    def commands(self) -> MutableMapping[str, Any]:
        """Every command by its name."""
        return {name: self.get_command(None, name) for name in self.list_commands(None)}

    @commands.setter
    def commands(self, groups: MutableMapping[str, Any]) -> None:
        self._apps = groups

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """The names of all commands, in the order of the help."""
        return [*self.functions, *self._apps]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The command of a name; None where there is none."""
        if (function := self.functions.get(cmd_name)) is None:
            return self._apps.get(cmd_name)
        return typer.main.get_command_from_info(
            CommandInfo(cmd_name, cls=Command, callback=with_options(function)),
            pretty_exceptions_short=False,
            rich_markup_mode=None,
        )

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the commands in their groups, each with the first sentence of its help."""
        helps = {name: inspect.getdoc(function) for name, function in self.functions.items()}
        apps = {name: app.help for name, app in self._apps.items() if not app.hidden}
        widest = max(map(len, helps))
        for title, names in self.groups.items():
            listed = {name: helps[name] for name in names} | (apps if title == [*self.groups][-1] else {})
            rows = [
                (name.ljust(widest), TyperCommand(name, help=said).get_short_help_str(_WHOLE))
                for name, said in listed.items()
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


def options_of(declaration: str, *only: str) -> Callable[[Function], Function]:
    """Give a command the options of a declaration in place of its parameter `given`.

    Args:
        declaration: its module and name, as `module:Name` within tunebench.studies; imported when the options are used.
        only: these of its options; all of them unless given.
    """

    def declare(command: Function) -> Function:
        vars(command)["declaration"] = (declaration, only)
        return command

    return declare


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of its declaration, as typer takes them; the same where it has none."""
    if "declaration" not in vars(command):
        return command
    from tunebench.studies.request import options

    model, only = _declaration_of(command)
    declared = options.options_of(model, only)
    flags = {one: options.text_of(one, field).flags for one, field in declared.items()}

    def parameters() -> Iterator[inspect.Parameter]:
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name != GIVEN:
                yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                continue
            for one, field in declared.items():
                option = {} if flags[one] else {one: _option(field, options.text_of(one, field))}
                for flag, said in flags[one].items():
                    option[_named_by(flag)] = Annotated[bool | None, typer.Option(f"--{flag}", help=said)]
                for name, annotation in option.items():
                    yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    @wraps(command)
    def run(**named: Any) -> None:
        said = {
            one: [flag for flag in flags[one] if named.pop(_named_by(flag))] if flags[one] else named.pop(one)
            for one in declared
        }
        said = {one: value for one, value in said.items() if value not in (None, [])}
        command(**named, **{GIVEN: options.given(model, said)})

    vars(run)["__signature__"] = inspect.Signature(list(parameters()))
    run.__annotations__ = {}
    return run


def _named_by(flag: str) -> str:
    return flag.replace("-", "_")


def ask(command: Callable[..., None], arguments: dict[str, Any]) -> None:
    """Run a command with arguments that were JSON, where null is one that is not given; it prints JSON.

    Raises:
        UserError: one is empty or not legal.
    """
    from tunebench.studies.request import options
    from tunebench.tuner.empty import require_said

    said = arguments.pop(GIVEN, {})
    for name, value in {**arguments, **said}.items():
        require_said(name, value)
    if said:
        arguments[GIVEN] = options.given(_declaration_of(command)[0], said)
    command(**{name: value for name, value in arguments.items() if value is not None}, as_json=True)


def _declaration_of(command: Callable[..., None]) -> tuple[type[Any], tuple[str, ...]]:
    declaration, only = vars(command)["declaration"]
    module, _, name = declaration.partition(":")
    return getattr(import_module(f"tunebench.studies.{module}"), name), only


def _option(field: Any, text: Any) -> Any:
    """The annotation by which typer makes an option of a field."""
    import enum

    from tunebench.studies.request.completion import among
    from tunebench.studies.request.options import help_of, kind_of
    from tunebench.studies.request.text import LARGEST

    kind, several = kind_of(field.annotation)
    complete = text.complete
    if issubclass(kind, enum.StrEnum):
        complete, kind = among(kind), str
    elif text.read is not None:
        kind = str
    limits = {
        name: getattr(one, bound)
        for one in field.metadata
        for name, bound in (("min", "ge"), ("max", "le"))
        if getattr(one, bound, LARGEST) != LARGEST  # which tells nobody anything; `given` refuses more
    }
    metavar = text.metavar or ("N" if kind in (int, float) else None)
    option = typer.Option(
        text.flag, metavar=metavar, help=help_of(field), autocompletion=complete, show_default=False, **limits
    )
    return Annotated[(list[kind] if several and not text.once else kind) | None, option]  # type: ignore[valid-type]
