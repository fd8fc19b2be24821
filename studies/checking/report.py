"""The report of a check: the verdict on one target in one mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tunebench.studies.checking.request import CheckRequest
from tunebench.studies.request.options import Declaration
from tunebench.tuner.configuration import Value
from tunebench.tuner.gate.refusal import Claim, Refusal
from tunebench.tuner.kernel import Mode
from tunebench.tuner.result import Stage, Verdict
from tunebench.tuner.settings import described

NO_REPRODUCTION = "no short reproduction: one call of a new model does not show it"


@dataclass(frozen=True)
class Subject:
    """The device and the model that turn out to be judged.

    Attributes:
        device: its name; empty where none was reached.
        place: the same as torch names it, such as `cuda:0`.
        configuration: of a kernel; None of anything else.
        declared: of the model.
        box: how its process is shut off from others; empty where it is not a file.
    """

    device: str
    place: str
    configuration: Mapping[str, Value] | None
    declared: tuple[Declaration, ...]
    box: str = ""


@dataclass(frozen=True)
class CheckReport:
    """The verdict on one target in one mode; `str` of it is what the command line prints at the end.

    Attributes:
        request: what was asked, with what has to hold.
        subject: what it was asked of.
        trusted: it ran in the judge's own process, so that whoever named it vouches for its code.
        verdict: on everything that was asked.
        refusals: the stages that did not pass, each with what it is about and, where one call shows it, a reproduction.
        seconds: what all of it took, from the question to the verdict.
    """

    request: CheckRequest
    mode: Mode
    subject: Subject
    trusted: bool
    verdict: Verdict
    refusals: tuple[Refusal, ...]
    seconds: float

    @property
    def target(self) -> str:
        """The target that was checked, as it was named."""
        return self.request.target

    @property
    def device(self) -> str:
        """The device's name; empty where none was reached."""
        return self.subject.device

    @property
    def configuration(self) -> Mapping[str, Value] | None:
        """A kernel's configuration; None for anything else."""
        return self.subject.configuration

    @property
    def declared(self) -> tuple[Declaration, ...]:
        """The declarations about the model, for which the gate left something out."""
        return self.subject.declared

    @property
    def seed(self) -> int | None:
        """The seed of the questions; None where none was asked."""
        return self.request.seed

    @property
    def require(self) -> Claim:
        """The claim that has to hold for `passed`."""
        return self.request.require or Claim.DROP_IN

    @property
    def passed(self) -> bool:
        """Whether what is required holds."""
        return self.holds(self.require)

    def holds(self, claim: Claim | str) -> bool:
        """Whether it is right for the problem (`problem`), or whatever else a drop-in has to be as well (`drop-in`).

        It is no drop-in where gradients or sizes could not be asked.
        """
        if Claim(claim) is Claim.DROP_IN:
            return self.verdict.passed and not self.verdict.unshown
        return not any(refusal.claim is Claim.PROBLEM for refusal in self.refusals)

    @property
    def not_asked(self) -> tuple[tuple[str, str], ...]:
        """Stages that asked nothing, and what others passed over, each with the reason."""
        whole = [(stage.name, stage.why_not_asked) for stage in self.stages if not stage.asked]
        return (*whole, *((stage.name, part) for stage in self.stages for part in stage.passed_over))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Every stage that has ended, in order."""
        return self.verdict.stages

    @property
    def seconds_outside(self) -> float:
        """Seconds outside the stages: starting processes, the reference's own answers, reproductions.

        Where stages were asked side by side, theirs may come to more than the whole: none are outside then.
        """
        return max(0.0, self.seconds - sum(stage.seconds for stage in self.stages))

    def __str__(self) -> str:
        """The verdicts, and of each refusal what one call shows."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        what, errors, refusals = f"{self.target}, {self.mode}", self.verdict.errors, self.refusals
        wrong = [refusal for refusal in refusals if refusal.claim is Claim.PROBLEM]
        for refusal in refusals:
            shown = refusal.reproduction or f"{refusal.detail}; {NO_REPRODUCTION}"
            yield f"{what}: {refusal.name}: {shown}"
        if self.request.settings:
            yield f"{what}: eager: {described(self.request.settings)}"
        if self.subject.box:
            yield f"{what}: {self.subject.box}"
        if self.declared:
            yield f"{what}: declared: {', '.join(self.declared)}"
        if self.seed is not None:
            yield f"{what}: seed {self.seed} asks the same questions again"
        is_passed = errors is not None and errors.first_wrong_index is None
        figures = f" (error {errors.max_relative:.1e} of the output's size)" if errors and is_passed else ""
        trusted = ", trusted: it ran in the judge's process" if self.trusted else ""
        yield f"{what}: " + (
            f"NOT right for the problem: {wrong[0].detail}" if wrong else f"right for the problem{figures}{trusted}"
        )
        if not refusals:
            yield f"{what}: " + (
                f"drop-in not shown: {self.verdict.unshown}" if self.verdict.unshown else "a drop-in for the reference"
            )
        elif not wrong:
            losses = "; ".join(f"{refusal.loss or refusal.detail} ({refusal.name})" for refusal in refusals)
            yield f"{what}: NOT a drop-in for the reference: {losses}"
        if self.not_asked and not wrong:
            reasons: dict[str, list[str]] = {}
            for stage, reason in self.not_asked:
                reasons.setdefault(reason, []).append(stage)
            told = "; ".join(f"{', '.join(stages)} ({reason})" for reason, stages in reasons.items())
            yield f"{what}: not asked: {told}"

    @property
    def line(self) -> str:
        """The verdicts in one line."""
        name, _, problem, drop_in, refusal, seconds = self.row
        told = f": {refusal}" if refusal else ""
        return f"{name}, {self.mode}: problem {problem}, drop-in {drop_in}, {seconds} s, seed {self.seed}{told}"

    @property
    def row(self) -> tuple[str, ...]:
        """Target, mode, the two verdicts, the first refusal and the seconds, for a table."""
        problem, drop_in = ("yes" if self.holds(claim) else "NO" for claim in Claim)
        if self.verdict.passed and self.verdict.unshown:
            drop_in = "not shown"
        first = min(self.refusals, key=lambda one: one.claim is not Claim.PROBLEM, default=None)
        told = _told(first) if first else ""
        return Path(self.target).name, self.mode.value, problem, drop_in, told, f"{self.seconds:.1f}"

    def values(self) -> dict[str, object]:
        """The same in plain values, as `--json` prints it."""
        stages = sum(stage.seconds for stage in self.stages)
        return {
            "target": self.target,
            "mode": self.mode.value,
            "device": self.device,
            "configuration": None if self.configuration is None else dict(self.configuration),
            "eager": described(self.request.settings or {}),
            "declared": [one.value for one in self.declared],
            "trusted": self.trusted,
            "seed": self.seed,
            "box": self.subject.box or None,
            **asdict(self.verdict),
            "stages": [{**asdict(stage), "asked": stage.asked} for stage in self.stages],
            "required": self.require.value,
            "passed": self.passed,
            "right_for_problem": self.holds(Claim.PROBLEM),
            "drop_in": self.holds(Claim.DROP_IN),
            "unshown": self.verdict.unshown,
            "not_asked": [{"stage": stage, "reason": reason} for stage, reason in self.not_asked],
            "refusals": [_refusal_values(refusal) for refusal in self.refusals],
            "seconds": {"whole": self.seconds, "stages": stages, "outside": self.seconds_outside},
        }


def _told(refusal: Refusal) -> str:
    """The stage and what it found, which often begins with the stage's name, or the end of it."""
    begin, _, rest = refusal.detail.partition(": ")
    return f"{refusal.name}: {rest if refusal.name.endswith(begin) else refusal.detail}"


def _refusal_values(refusal: Refusal) -> dict[str, object]:
    call = refusal.reproduction
    shown = {"stage": refusal.name, "claim": refusal.claim.value, "detail": refusal.detail, "loss": refusal.loss}
    if call is None:
        return {**shown, "reproduction": None}
    plain = {
        "sizes": dict(call.sizes),
        "mode": call.mode,
        "manner": call.manner,
        "seed": call.seed,
        "shapes": list(call.shapes),
    }
    element = None if call.element is None else asdict(call.element)
    return {**shown, "reproduction": {**plain, "shown": call.shown, "element": element}}
