# make run    train PPO on HalfCheetah-v5 for a million steps, say where the results are
# make test   everything that can be checked in minutes
# make lint   format and lint (make format to apply)
# make speed  steps per second against Stable-Baselines3
# make table1   the paper's Table 1: 231 runs, go on with it at any time; then the report
# make figure3  TRPO and vanilla policy gradient beside PPO: 42 runs more, likewise
# make atari-small   Pong for 4M steps and Breakout for 1M, on all cores; then the report
# make atari    the paper's 49 games x 3 seeds x 10M steps, likewise
# make report   tables and pictures from the results that are there
# make figures  Figures 1 and 2 of the paper
# make rlhf     the language model's 39 runs, go on with it at any time; then docs/rlhf.md
# make quick    all of this on a small scale, in three minutes: runs/quick
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test lint format speed table1 figure3 atari-small atari report figures rlhf quick

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

table1: .venv/bench
	$(BIN)/python -m benchmarks.run random
	$(BIN)/python -m benchmarks.run table1
	$(BIN)/python -m benchmarks.report table1

figure3: table1
	$(BIN)/python -m benchmarks.run figure3
	$(BIN)/python -m benchmarks.report figure3

atari-small atari: .venv/bench
	$(BIN)/python -m benchmarks.run $@
	$(BIN)/python -m benchmarks.atari $@

report: .venv/bench
	$(BIN)/python -m benchmarks.report
	$(BIN)/python -m benchmarks.atari
	$(BIN)/python -m benchmarks.rlhf

figures: .venv/bench
	$(BIN)/python -m benchmarks.figures

rlhf: .venv/bench
	$(BIN)/python -m benchmarks.run rlhf
	$(BIN)/python -m benchmarks.rlhf

# BUDGET=4096 makes it quicker still, but then nothing is learnt.
BUDGET ?= 40960
QUICK := runs/quick
quick: .venv/bench
	$(BIN)/python -m benchmarks.run random --results $(QUICK) --runs $(QUICK) --seeds 1 \
	    --only env=InvertedPendulum-v5 env=Reacher-v5
	$(BIN)/python -m benchmarks.run quick --results $(QUICK) --runs $(QUICK) \
	    --total-timesteps $(BUDGET)
	$(BIN)/python -m benchmarks.report quick$(if $(filter-out 40960,$(BUDGET)),@$(BUDGET)) \
	    --results $(QUICK) --docs $(QUICK) --readme $(QUICK)/README.md
	@echo "pictures: $(QUICK)/quick.png and quick-curves.png"

# .venv/NAME is the mark that requirements-NAME.txt has been installed.
.venv/run: requirements.txt
.venv/test: requirements-test.txt requirements.txt
.venv/bench: requirements-bench.txt requirements.txt
.venv/run .venv/test .venv/bench:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -r $<
	touch $@
