# make run    train PPO on HalfCheetah-v5 for a million steps, say where the results are
# make test   everything that can be checked in minutes
# make lint   format and lint (make format to apply)
# make speed  steps per second against Stable-Baselines3
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test lint format speed

run: .venv/run
	$(BIN)/python ppo_continuous.py --env-id HalfCheetah-v5
	@echo
	@echo "curves:    $(BIN)/tensorboard --logdir runs"
	@echo "play it:   $(BIN)/python ppo_continuous.py --evaluate RUN_DIR --capture-video"

test: .venv/test lint
	$(BIN)/python -m pytest -q

lint: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: .venv/test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

speed: .venv/bench
	$(BIN)/python -m benchmarks.speed

# .venv/NAME is the mark that requirements-NAME.txt has been installed.
.venv/run: requirements.txt
.venv/test: requirements-test.txt requirements.txt
.venv/bench: requirements-bench.txt requirements.txt
.venv/run .venv/test .venv/bench:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -r $<
	touch $@
