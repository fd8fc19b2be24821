"""A user's folder may raise anything: it is one line with the file and the line number, and costs no other result."""

import re
from pathlib import Path

import pytest
from command_line import CommandLine
from sample_kernel import WriteKernel

from tunebench.db.connection.database import open_database
from tunebench.studies.tuning.resolved import make_evaluator, resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.studies.tuning.tune import tune
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.errors import UserError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.result import TrialStatus

pytestmark = pytest.mark.usefixtures("short_studies")

DECLARED = 'Kernel.declare(__file__, SPACE, axes={"x": "n"}, work=work)'
PROBLEM = 'return super().problem(x) if x.is_contiguous() else self.unserved("x has holes")'
METHOD = "    def tuned_forward(self, plan, x):\n"
LAUNCH = 'plan.launch("weigh", x, self.weight, y, x.numel(), blocks=blocks, threads=block_size)'
CONSTRAINT = "lambda block_size, blocks: block_size * blocks <= 512"
RENAMED = "        super().__init__()\n        self.w = self._parameters.pop('weight')\n"
CLASS = "class ModelNew(TunedModule, Model):"


def first_trial(folder: Path) -> None:
    """What the first trial of a study does, in this process."""
    request = request_of(str(folder), {"device": "cpu"})
    resolved = resolve(request)
    evaluator = make_evaluator(request, Mode.EVAL)
    space = resolved.space.enumerate(evaluator.problem, resolved.device)
    default = space[space.default]
    variant = resolved.kernel.variant(default, evaluator.problem, resolved.device.architecture)
    evaluator.evaluate(default, BuildCache().build(resolved.compiler, variant))


CASES: dict[str, tuple[dict[str, str], str]] = {
    "a float for a count": (
        {LAUNCH: LAUNCH.replace("x.numel()", "x.numel() * 1.0")},
        r"model.py:\d+: launch of 'weigh': parameter .*n.* takes an int or a bool, not 2112.0 \(float\)",
    ),
    "too few arguments": (
        {LAUNCH: LAUNCH.replace(", x.numel()", "")},
        r"model.py:\d+: launch of 'weigh': it takes 4 arguments \(x, weight, y, n\), not 3",
    ),
    "an entry point that is not there": (
        {'plan.launch("weigh"': 'plan.launch("wiegh"'},
        r"model.py:\d+: no entry point 'wiegh' \(known: weigh\)",
    ),
    "a name in the forward": ({"y = torch.empty_like(x)": "y = torch.empty_like(z)"}, r"model.py:\d+: .* NameError"),
    "a division by zero": ({"y = torch.empty": "1 / 0; y = torch.empty"}, r"model.py:\d+: .* ZeroDivisionError: divi"),
    "a tunable that is not there": (
        {'plan.integer("blocks")': 'plan.integer("block")'},
        r"model.py:\d+: unknown tunable 'block'; did you mean blocks",
    ),
    "a constraint that raises": (
        {CONSTRAINT: "lambda block_size, blocks: block_size // 0 == blocks"},
        r"model.py:\d+: constraint 'few_threads' fails for block_size=32 blocks=1: ZeroDivisionError: ",
    ),
    "a condition that raises": (
        {'Tunable("variety", (0, 1, 2))': 'Tunable("variety", (0, 1, 2), when=lambda problem: problem.axes["m"] > 1)'},
        r"model.py:\d+: the condition of tunable 'variety' fails: KeyError: 'm'",
    ),
    "compiled axes that are none": (
        {DECLARED: DECLARED.replace("work=work", 'work=work, compiled_axes=("m",)')},
        r"model.py: compiled_axes: no axis 'm'; the problem has n",
    ),
    "compiled options that are none": (
        {DECLARED: DECLARED.replace("work=work", 'work=work, compiled_options={"mode": ("eval",)}')},
        r"model.py: compiled_options: no option 'mode'; the problem has no options",
    ),
    "a text for names": (
        {DECLARED: DECLARED.replace("work=work", 'work=work, compiled_axes="n"')},
        r"model.py:\d+: compiled_axes='n': give a tuple of names, such as \(\"n\",\)",
    ),
    "a list for axes": (
        {'axes={"x": "n"}': 'axes=["n"]'},
        r"model.py:\d+: axes=\['n'\]: give a mapping of tensors' names",
    ),
    "a number for work": ({"work=work)": "work=3)"}, r"model.py:\d+: work=3: give a function of the problem"),
    "axes of what is no tensor": (
        {'axes={"x": "n"}': 'axes={"x": "n", "z": "n"}'},
        r"reference's inputs: the kernel names 'z', which is neither an input of forward nor a parameter",
    ),
    "a parameter that there is not": (
        {DECLARED: DECLARED.replace("work=work", 'work=work, in_float32=("z",)')},
        r"reference's inputs: the kernel names 'z', which is neither an input of forward nor a parameter",
    ),
    "no space": ({DECLARED: "Kernel.declare(__file__)"}, r"model.py:\d+: does not import: TypeError: .*'space'"),
    "a list for a space": (
        {DECLARED: "Kernel.declare(__file__, [])"},
        r"model.py:\d+: .*the space is a list: give a SearchSpace",
    ),
    "entry points": (
        {DECLARED: DECLARED.replace("work=work", 'entry_points="weigh"')},
        r"model.py:\d+: does not import: TypeError: .*'entry_points'",
    ),
    "a mode that is none": (
        {DECLARED: DECLARED.replace("work=work", 'modes=("eval", "test")')},
        r"model.py:\d+: .*modes \('eval', 'test'\): name one or more of eval, train, frozen",
    ),
    "a default that is no value": (
        {"default=64": "default=63"},
        r"model.py:\d+: tunable 'block_size' has no value 63; its values are",
    ),
    "a syntax error": ({CLASS: CLASS.replace(":", "")}, r"model.py:\d+: does not import: SyntaxError: expected ':'"),
    "an import that is not there": (
        {"from .reference import Model": "from .refrence import Model"},
        r"model.py:\d+: does not import: ModuleNotFoundError",
    ),
    "an exit": ({CLASS: f"raise SystemExit(3)\n{CLASS}"}, r"model.py:\d+: does not import: SystemExit: 3"),
    "no reference": (
        {CLASS: "class ModelNew(TunedModule):"},
        r"ModelNew has no reference: write `class ModelNew\(TunedModule, Model\)` with the reference's Model last",
    ),
    "the reference first": (
        {CLASS: "class ModelNew(Model, TunedModule):"},
        r"write `class ModelNew\(TunedModule, Model\)` with the reference's Model last",
    ),
    "no forward": ({METHOD: "    def forwards(self, plan, x):\n"}, r"model.py: ModelNew has no tuned_forward"),
    "another constructor": (
        {METHOD: f"    def __init__(self, features):\n        super().__init__()\n\n{METHOD}"},
        r"ModelNew cannot be made like Model: TypeError: .*'features'",
    ),
    "a parameter with another name": (
        {METHOD: f"    def __init__(self):\n{RENAMED}\n{METHOD}"},
        r"its parameters and buffers are not Model's: w \(1,\), weight \(1,\)",
    ),
    "a problem that raises": ({PROBLEM: "return x.axes"}, r"model.py:\d+: problem\(\): AttributeError: "),
    "a problem that is none": ({PROBLEM: "return {'n': 3}"}, r"model.py: problem\(\) returns dict, not a Problem"),
    "a problem without a reason": (
        {PROBLEM: "return None"},
        r"kernel 'weigh' cannot serve its reference's inputs: its `problem` gives no reason",
    ),
    "a problem with a reason": ({PROBLEM: "return self.unserved('not today')"}, r"reference's inputs: not today$"),
    "work that raises": ({"return Work(8": "return Word(8"}, r"model.py:\d+: work\(\): NameError: name 'Word'"),
    "work that is no number": (
        {"return Work(8 * ": "return Work('8' * "},
        r"model.py:\d+: Work\(bytes='8+'\): give a number that is not negative$",
    ),
    "work that is negative": (
        {"return Work(8 * ": "return Work(-8 * "},
        r"model.py:\d+: Work\(bytes=-\d+\): give a number",
    ),
    "a number for values": (
        {"(0, 1, 2)": "3"},
        r"model.py:\d+: tunable 'variety': its values are 3: give a tuple, such as \(1, 2, 4\)",
    ),
    "a word of C++ for a tunable": (
        {'"variety"': '"register"'},
        r"model.py:\d+: 'register' cannot name a tunable: it is a word of C\+\+",
    ),
    "a function for a constraint": (
        {f'Constraint("few_threads", {CONSTRAINT})': CONSTRAINT},
        r"model.py:\d+: the space's constraints are or have a function: give a tuple of Constraint\(name, …\)",
    ),
    "a dtype that is none": (
        {"work=work)": "work=work, dtypes=('fp32',))"},
        r"model.py:\d+: dtypes: no 'fp32'; the legal ones are float64, float32, float16, bfloat16",
    ),
    "a name that the reference does not have": (
        {"import Model": "import Modell"},
        r"model.py:\d+: does not import: ImportError: cannot import name 'Modell' from 'reference' ",
    ),
    "work that is none": ({"return Work(8 * ": "return (8 * "}, r"model.py: work\(\) returns tuple, not a Work"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_it_is_one_line_with_the_place(write_kernel: WriteKernel, case: str) -> None:
    changes, message = CASES[case]
    model = write_kernel().kernel.path
    text = model.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    model.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as raised:
        first_trial(model.parent)
    assert re.search(message, str(raised.value)), str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"return x * self.weight": "return x * self.wait"}, r"reference.py:\d+: .*AttributeError: 'Model' object"),
        ({"def __init__(self):": "def __init__(self, size):"}, r"the reference's Model cannot be made: TypeError"),
        (
            {"return [torch.rand(rows, columns) + 0.1]": "return torch.rand(rows, columns)"},
            r"get_inputs\(\) returns a Tensor: give a list",
        ),
        ({"return []": "return"}, r"weigh: get_init_inputs\(\) returns a NoneType: give a list"),
        ({"rows = 64": "rows = 1 / 0"}, r"reference.py:\d+: does not import: ZeroDivisionError"),
    ],
    ids=["forward", "constructor", "a tensor for inputs", "nothing for arguments", "a constant"],
)
def test_so_is_what_the_reference_raises(write_kernel: WriteKernel, changes: dict[str, str], message: str) -> None:
    folder = write_kernel().kernel.folder
    for old, new in changes.items():
        file = folder / "reference.py"
        file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        first_trial(folder)


@pytest.mark.slow
def test_what_one_configuration_raises_is_a_row(write_kernel: WriteKernel, tmp_path: Path) -> None:
    odd = "        if plan['variety'] == 2: raise ValueError('not for two')\n        self.calls += 1\n        y ="
    folder = write_kernel(model={"        self.calls += 1\n        y =": odd}).kernel.folder
    options = {"device": "cpu", "trials": 4, "tunables": {"block_size": [64], "blocks": [2]}, "fresh": True}
    with open_database(tmp_path / "a.db") as database:
        (report,) = tune(resolve(request_of(str(folder), options)), database)
    assert report.outcome.trials == 3
    ((line, count),) = report.outcome.refusals.items()
    assert count == 1 and line.startswith(f"{TrialStatus.RUNTIME}: ")
    assert re.search(r"model.py:\d+: the forward fails: ValueError: not for two$", line)


@pytest.mark.slow
def test_what_the_default_raises_stops_the_study_at_once(run: CommandLine, write_kernel: WriteKernel) -> None:
    folder = write_kernel(model={"y = torch.empty_like(x)": "y = torch.empty(x.size)"}).kernel.folder
    ran = run("tune", folder, "--device", "cpu", "--trials", "9")
    assert ran.code == 2
    assert re.search(r"model.py:\d+: the forward fails: TypeError: .*\(in the default configuration: block", ran.err)
    assert "Traceback" not in ran.err


STDIO = {"extern": "#include <stdio.h>\nextern", "y[i] = x[i]": 'if (i < 0) printf("%d", variety); y[i] = x[i]'}


@pytest.mark.usefixtures("nvrtc")
def test_what_builds_on_the_cpu_alone_is_refused_by_check(run: CommandLine, write_kernel: WriteKernel) -> None:
    folder = write_kernel(source=STDIO).kernel.folder
    ran = run("check", folder, "--device", "cpu", "--arch", "sm_80")
    assert ran.code == 1
    line, *_ = [line for line in ran.out.splitlines() if "GPU build" in line]
    assert re.search(r"REFUSED +GPU build .* for sm_80: NVRTC refused weigh.cu: weigh.cu\(\d+\): .*stdio.h", line)


@pytest.mark.slow
@pytest.mark.usefixtures("nvrtc")
def test_a_study_on_the_cpu_says_so_too(write_kernel: WriteKernel, tmp_path: Path) -> None:
    options = {"device": "cpu", "trials": 1, "fresh": True}
    with open_database(tmp_path / "a.db") as database:
        reports = [
            tune(resolve(request_of(str(write_kernel(source=source).kernel.folder), options)), database)[0]
            for source in (STDIO, {})
        ]
    assert "NVRTC refused weigh.cu: weigh.cu(" in reports[0].gpu_refusal and "stdio.h" in reports[0].gpu_refusal
    assert reports[1].gpu_refusal == ""


def test_a_problem_file_is_not_a_kernel(run: CommandLine, write_kernel: WriteKernel) -> None:
    ran = run("tune", write_kernel().kernel.folder / "reference.py", "--device", "cpu")
    assert ran.code == 2
    assert "a problem, with nothing to tune yet: 'tunebench new " in ran.error


def test_what_check_refuses_has_the_line(run: CommandLine, write_kernel: WriteKernel) -> None:
    folder = write_kernel(model={"y = torch.empty_like(x)": "y = torch.empty(x.size)"}).kernel.folder
    ran = run("check", folder, "--device", "cpu")
    assert ran.code == 1
    assert re.search(r"/model.py:\d+: TypeError: ", " ".join(ran.out.split()))


def test_what_export_meets_in_a_folder_is_one_line(run: CommandLine, write_kernel: WriteKernel) -> None:
    folder = write_kernel(model={PROBLEM: "return {}['z']"}).kernel.folder
    ran = run("export", folder, "-o", "-")
    assert re.search(r"model.py:\d+: the reference or ModelNew cannot be made: KeyError: 'z'$", ran.error)
