"""The command line against a server with a null model."""

import itertools
import json
import os
import re
import subprocess
import sys
from importlib import metadata

import pytest
from anyio.from_thread import start_blocking_portal
from typer.testing import CliRunner

from tandem.app.api.http.backend import ModelPart
from tandem.app.api.routes import create_api
from tandem.app.cli.main import cli
from tandem.deployments.modes.speculative.settings import SpeculativeOptions
from tests.app.api.null_backend import NullBackend
from tests.servers import served

SAYS = "Zürich 🗼 [bold]has[/] three bridges."
run = CliRunner().invoke


@pytest.fixture
def backend(tmp_path) -> NullBackend:
    return NullBackend(says=SAYS, ledger=tmp_path / "ledger.sqlite")


def test_help_for_everything():
    for flag in ("--help", "-h"):
        assert "Exit status" in run(cli, [flag]).stdout
    for command in (
        "chat",
        "devices",
        "account",
        "usage",
        "explain",
        "keys",
        "bench",
        "config",
        "up",
        "down",
    ):
        assert run(cli, [command, "--help"]).stdout == run(cli, [command, "-h"]).stdout != ""
    for command in ("list", "make", "change", "rotate", "revoke", "device"):
        assert run(cli, ["keys", command, "--help"]).exit_code == 0
    for command in ("list", "make", "rotate", "revoke"):
        assert run(cli, ["keys", "device", command, "--help"]).exit_code == 0
        assert run(cli, ["keys", "device", command, "-h"]).exit_code == 0
    assert run(cli, ["sing"]).exit_code == 2


def test_version():
    assert run(cli, ["--version"]).stdout == f"tandem {metadata.version('tandem-llm')}\n"


def test_chat_prints_bare_text_where_there_is_no_terminal(url):
    result = run(cli, ["chat", "Hello?", "--url", url])
    assert (result.exit_code, result.stdout) == (0, SAYS + "\n")
    legend, figures = result.stderr.splitlines()
    assert (legend, figures[:15]) == (f"{len(SAYS.encode()) + 1} cloud", "cloud · 41 toke")
    silent = run(cli, ["chat", "Hello?", "--url", url, "--origins", "none"])
    assert (silent.stdout, silent.stderr) == (SAYS + "\n", "")


def test_chat_says_on_stderr_that_a_demo_answers_unless_a_program_reads(url, backend):
    backend.parts = (ModelPart(role="target", model="target", demo=True),)
    piped = run(cli, ["chat", "Hello?", "--url", url])
    assert "encyclopedia" not in piped.stderr
    reader, terminal = os.openpty()
    code = "from tandem.app.cli.main import main; main()"
    read = subprocess.run(
        [sys.executable, "-c", code, "chat", "Hello?", "--url", url],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        timeout=100,
    )
    os.close(terminal)
    os.close(reader)
    assert read.stderr.count("only an invented encyclopedia") == 1


def test_chat_passes_the_wishes_on(url, backend):
    wishes = "--mode speculative --device pixel-1 --window 3 --temperature 0.5 --seed 7 --max-tokens 9"
    result = run(cli, ["chat", "Hello?", "--system", "Be brief.", *wishes.split()], env={"TANDEM_URL": url})
    assert result.exit_code == 0
    (job,) = backend.jobs
    assert (job.mode, job.device, job.asked(SpeculativeOptions).window) == ("speculative", "pixel-1", 3)
    assert (job.sampling.temperature, job.sampling.seed, job.sampling.max_tokens) == (0.5, 7, 9)
    assert bytes(backend.tokenizer("null").shown_bytes(job.prompt)) == b" Be brief. Hello?"


def test_an_account_is_shown_and_set(url, backend):
    key = {"TANDEM_URL": url}
    chat = ["chat", "Hello?", "--mode", "race", "--budget", "0.25", "--exchange-rate", "2e-6"]
    assert run(cli, chat, env=key).exit_code == 0
    (job,) = backend.jobs
    assert (job.budget, job.exchange_rate, job.account) == (0.25, 2e-6, "anonymous")
    changed = run(cli, ["account", "--budget", "0.125"], env=key)
    assert changed.exit_code == 0
    spent, terms = changed.stdout.split("\n\n")
    names, everything, *_ = (line.split("\t") for line in spent.splitlines())
    assert names == ["what you spent", "requests", "tokens in", "tokens out", "dollars", "joules"]
    assert everything[0] == "in all"
    told = dict(line.split("\t", 1) for line in terms.splitlines())
    assert told["account"] == job.account
    assert told["terms"].startswith("budget 0.125; ")
    shown = json.loads(run(cli, ["account", "--json"], env=key).stdout)
    assert (shown["budget"], shown["account"]) == (0.125, job.account)
    other = json.loads(
        run(cli, ["account", "--json", "--device", "my phone"], env={"TANDEM_URL": url}).stdout
    )
    assert (other["account"], other["budget"]) == ("device-my phone", 0.5)
    assert run(cli, ["account", "--budget", "7"], env=key).exit_code == 2


def test_chat_reads_a_question_from_stdin(url, backend):
    assert run(cli, ["chat", "--url", url], input="From a pipe").stdout == SAYS + "\n"
    assert backend.tokenizer("null").decode(backend.jobs[0].prompt) == " From a pipe"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mode", "warp"], "mode 'warp' is not served here"),
        (["--device", "toaster"], "no device is called 'toaster' (HTTP 404)"),
        (["--model", "gpt-9"], "'gpt-9' does not exist here"),
        (["--max-tokens", "100000"], "context"),
    ],
)
def test_what_the_server_refuses_is_said_plainly(url, arguments, says):
    result = run(cli, ["chat", "Hello?", "--url", url, *arguments])
    assert result.exit_code == 1
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_an_answer_that_breaks_off(url, backend):
    backend.fail_after = (7, RuntimeError("a secret"))
    result = run(cli, ["chat", "Hello?", "--url", url])
    assert (result.exit_code, result.stdout) == (1, "Zürich")
    assert "the answer broke off: the server failed on this request" in result.stderr


@pytest.mark.parametrize("command", [["chat", "Hello?"], ["devices"], ["bench"]])
@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("http://127.0.0.1:1", "start a server with `tandem up`"),
        ("nonsense", "is not an address"),
        ("http://x:port", "is not an address"),
    ],
)
def test_no_server(command, address, says):
    result = run(cli, [*command, "--url", address])
    assert result.exit_code == 1
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_wrong_usage():
    assert run(cli, ["chat", "x", "--window", "0"]).exit_code == 2
    assert run(cli, ["bench", "--requests", "none"]).exit_code == 2


def test_devices(url):
    result = run(cli, ["devices", "--url", url])
    assert result.stdout.splitlines() == [
        "name\thardware\tRTT ms\tbusy\tbattery",
        "pixel-1\tpixel7pro-bloom560m (emulated)\t10.0\t1 of 4\t50%",
    ]
    assert json.loads(run(cli, ["devices", "--json", "--url", url]).stdout)[0]["name"] == "pixel-1"


def test_no_devices(url, backend):
    async def none():
        return []

    backend.devices = none
    assert run(cli, ["devices", "--url", url]).stdout == "No device is registered.\n"


def test_bench(url, backend):
    result = run(cli, ["bench", "--url", url, "--requests", "6", "--concurrency", "3", "--mode", "device"])
    assert result.exit_code == 0
    assert [line.split("\t")[0] for line in result.stdout.splitlines()[1:4]] == [
        "TTFT ms",
        "TPOT ms",
        "total ms",
    ]
    assert f"6 answers, {6 * (len(SAYS.encode()) + 1)} tokens" in result.stdout
    assert {job.mode for job in backend.jobs} == {"device"}


def test_bench_for_programs(url):
    result = run(cli, ["bench", "--url", url, "--requests", "4", "--json"])
    found = json.loads(result.stdout)
    assert (found["answers"], found["failures"]) == (4, {})
    assert found["ttft_s"].keys() == {"p50", "p90", "p99"}
    assert found["tokens_per_s"] == pytest.approx(found["tokens"] / found["wall_s"])


def test_bench_counts_failures(url, backend):
    backend.fail_after = (3, RuntimeError("odd"))
    result = run(cli, ["bench", "--url", url, "--requests", "2", "--max-tokens", "3"])
    assert (result.exit_code, "2 answers" in result.stdout) == (0, True)
    result = run(cli, ["bench", "--url", url, "--requests", "2", "--max-tokens", "4"])
    assert result.exit_code == 1
    assert "no answer came" in result.stderr


def test_bench_is_of_the_keys_account(url, backend):
    made = json.loads(run(cli, ["keys", "make", "me", "--role", "operator", "--url", url, "--json"]).stdout)
    bench = ["bench", "--url", url, "--requests", "2"]
    assert run(cli, bench, env={"TANDEM_API_KEY": made["secret"]}).exit_code == 0
    assert [job.account for job in backend.jobs] == [made["id"]] * 2
    refused = run(cli, bench, env={"TANDEM_API_KEY": ""})
    assert (refused.exit_code, "an API key is needed" in refused.stderr) == (1, True)


def test_keys(url, monkeypatch):
    """Run the commands that docs/operations.md shows."""
    monkeypatch.setenv("TANDEM_URL", url)
    assert "this machine alone" in run(cli, ["keys", "list"]).stdout
    refused = run(cli, ["keys", "make", "web-app"])
    assert (refused.exit_code, "operator" in refused.stderr) == (1, True)
    made = run(cli, ["keys", "make", "ada", "--role", "operator"])
    secret = made.stdout.splitlines()[1]
    assert secret.startswith("tandem-")
    monkeypatch.setenv("TANDEM_API_KEY", secret)

    terms = "--requests 600 --tokens 200000 --concurrent 16 --budget 0.3 --days 90 --mode cloud --mode race"
    user = json.loads(run(cli, ["keys", "make", "web-app", *terms.split(), "--json"]).stdout)
    assert user["terms"]["requests_per_minute"] == 600
    assert user["terms"]["modes"] == ["cloud", "race"]
    listed = run(cli, ["keys", "list"], env={"COLUMNS": "200"}).stdout
    assert "600 requests/min" in listed
    assert user["secret"] not in listed
    assert [key["name"] for key in json.loads(run(cli, ["keys", "list", "--json"]).stdout)] == [
        "ada",
        "web-app",
    ]

    change = ["keys", "change", user["id"], "--concurrent", "0", "--mode", "all", "--name", "app", "--json"]
    changed = json.loads(run(cli, change).stdout)
    assert (changed["name"], changed["terms"]["concurrent"], changed["terms"]["modes"]) == ("app", None, None)
    assert changed["terms"]["requests_per_minute"] == 600, "what is left out stays"
    rotated = json.loads(run(cli, ["keys", "rotate", user["id"], "--grace", "60", "--json"]).stdout)
    assert rotated["secret"] != user["secret"]
    for key in (user["secret"], rotated["secret"]):
        assert run(cli, ["account"], env={"TANDEM_API_KEY": key}).exit_code == 0
    assert run(cli, ["keys", "revoke", user["id"]]).stdout == f"{user['id']} is revoked.\n"
    assert run(cli, ["account"], env={"TANDEM_API_KEY": rotated["secret"]}).exit_code == 1
    unknown = run(cli, ["keys", "revoke", "key-none"])
    assert (unknown.exit_code, "there is no key 'key-none'" in unknown.stderr) == (1, True)


def test_bench_counts_connections_that_break(backend):
    """Every other answer of this server breaks off without a word."""
    app, answers = create_api(backend, backend), itertools.count()

    async def breaking(scope, receive, send):
        if scope["path"] == "/v1/chat/completions" and next(answers) % 2:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            return  # uvicorn then cuts the connection
        await app(scope, receive, send)

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(breaking)) as address,
    ):
        result = run(cli, ["bench", "--url", address, "--requests", "4", "--concurrency", "2"])
    assert result.exit_code == 0, result.stderr
    assert "2 answers" in result.stdout
    # how a connection breaks off is not always seen in the same way
    failed = re.findall(r"(\d+) failed: the connection to", result.stdout)
    assert sum(map(int, failed)) == 2


def test_down_without_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(cli, ["down"])
    assert (result.exit_code, result.stdout) == (0, "Nothing was running.\n")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, when it is imported
def test_up_says_what_is_in_the_way(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(cli, ["up", "--port", url.rsplit(":", 1)[1]])
    assert result.exit_code == 1
    assert "cannot be used" in result.stderr


def test_the_module_starts_quickly_and_without_the_engines():
    code = (
        "import sys, app.cli.main; assert not {'torch', 'ray', 'transformers', 'fastapi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
