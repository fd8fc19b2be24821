"""A command of tunebench: what every one of them refuses."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


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
