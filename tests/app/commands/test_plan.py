import pytest

STAGES = ["convert", "add_loss", "penalty", "derive", "train", "evaluate"]
SMALL = ("experiment=linear_regression", "train.epochs=1")


def statuses(said):
    return {line.split()[0]: line.split()[1] for line in said.stdout.splitlines()}


@pytest.fixture
def plan(tmp_path):
    """Run `ortpipe plan` in the folder that `cli` runs in."""
    from command import ortpipe

    return lambda *arguments: ortpipe("plan", *arguments, cwd=tmp_path)


def test_a_plan_of_an_empty_store_runs_everything_and_nothing_is_run(plan, tmp_path):
    said = plan(*SMALL)
    assert (said.returncode, said.stderr) == (0, "")
    assert statuses(said) == dict.fromkeys(STAGES, "miss")
    assert "no result of this stage is stored" in said.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_plan_says_what_is_stored_and_what_differs_from_it(cli, plan):
    assert cli(*SMALL).returncode == 0
    said = plan(*SMALL, "--check")
    assert (said.returncode, statuses(said)) == (0, dict.fromkeys(STAGES, "hit"))
    assert "outputs/runs/" in said.stdout

    said = plan(*SMALL, "train.optimizer.lr=0.05", "--check")
    assert said.returncode == 1
    assert statuses(said) == {**dict.fromkeys(STAGES[:4], "hit"), "train": "miss", "evaluate": "blocked"}
    assert "train.optimizer.lr 0.002 → 0.05\n" in said.stdout

    said = plan(*SMALL, "data.split.seed=3")
    assert statuses(said)["convert"] == "miss"
    assert "data.split.seed 0 → 3" in said.stdout

    said = plan(*SMALL, "paths.cache=null")
    assert statuses(said) == dict.fromkeys(STAGES, "miss")
    assert "there is no store" in said.stdout


def test_a_plan_is_what_a_run_then_does(cli, plan):
    assert cli(*SMALL).returncode == 0
    changed = (*SMALL, "convert.tolerance=0.01")
    assert statuses(plan(*changed)) == {"convert": "miss", **dict.fromkeys(STAGES[1:], "blocked")}
    done = cli(*changed)
    assert done.stderr.count("  cached: ") == 5  # the model is the one it was


def test_a_plan_is_drawn_as_a_graph_and_names_the_automatic_network(plan):
    done = plan("experiment=networks/auto", "--mermaid")
    assert "the automatic network is tabm (convert=tabular: members=4, " in done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "flowchart LR"
    assert "  convert --> add_loss --> penalty --> derive --> train --> evaluate" in said
    assert sum(":::miss" in line for line in said) == 6


def test_a_plan_refuses_what_a_run_refuses(plan):
    said = plan("train.epochs=0")
    assert said.returncode == 1
    assert "train.epochs must be a whole number, at least 1" in said.stderr
