GO ?= go
LIMITS ?= examples/limits.yaml
FUZZTIME ?= 20s
ACTIONLINT ?= $(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.8 -shellcheck= -pyflakes=
GOVULNCHECK ?= $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0
GOLANGCI_LINT ?= $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.5.0

# Each folder here has a go.mod of its own.
NESTED_MODULES = deploy/rls-aws-token test/bench/plots test/deploy test/faults test/openapi test/page test/simulate

# INCUMBENT is the program that rls replaces. Tests and benchmarks compare rls with it.
INCUMBENT = github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36

# GOTESTSUM runs go test and prints a line per finished package. The variable is the
# path of the built program, so that the nested modules can run it too.
GOTESTSUM = $(shell $(GO) tool -n gotestsum) --format pkgname --format-icons text --format-hide-empty-pkg --

# Tests mostly wait for servers, so more packages run at once than there are cores. With many more, tests of real processes
# would get too little CPU time for their time limits.
TEST_FLAGS = -vet=off -p 3

.PHONY: incumbent help run build test test-full test-deploy test-page e2e lint bench bench-redis bench-redis-versions bench-curves bench-peers bench-plots simulate-scale bench-leases bench-before bench-observers faults soak histories simulate simulate-mutants attacks fuzz docs docs-site tidy
.PHONY: release-snapshot release image test-release test-upgrade reproducible

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## Serve examples/limits.yaml (or LIMITS=FILE) with counters in the process
	@echo "Serving $(LIMITS). Try in another terminal:"
	@echo "  bin/rls hit -d shop remote_address=10.0.0.1 -n 8"
	@echo "Or open http://localhost:6070/ in a browser."
	@LIMITS_PATH=$(LIMITS) bin/rls serve

.PHONY: run-regions
run-regions: build ## Serve one limit in three regions on this machine, and say how to cut a region off
	@deploy/scripts/test-tools
	@examples/regions/run bin/rls

build: ## Build bin/rls
	@[ -e bin/rls ] || echo "Building bin/rls. The first build takes about 2 minutes on 2 cores; later ones take seconds."
	@$(GO) build -trimpath -buildvcs=false -ldflags "$$(deploy/scripts/ldflags)" -o bin/rls ./cmd/rls

# The race detector allocates and is slow, so the second run counts allocations and reads large inputs without it.
test: ## Run the tests with the race detector
	@deploy/scripts/test-tools
	@$(GOTESTSUM) $(TEST_FLAGS) -race -shuffle=on ./...
	@packages=$$(deploy/scripts/norace-packages) && $(GOTESTSUM) $(TEST_FLAGS) -run 'Alloc|LinearTime' $$packages
	@$(GOTESTSUM) $(TEST_FLAGS) ./test/spec

test-full: export RLS_TEST_FULL = 1
test-full: test test-faults test-simulate test-attacks ## Run the tests at full size, break real Redis servers, and attack the service

.PHONY: test-faults test-simulate test-attacks
test-faults:
	@deploy/scripts/test-tools
	@cd test/faults && $(GOTESTSUM) $(TEST_FLAGS) -race -shuffle=on -count=1 ./...

test-simulate:
	@cd test/simulate && $(GOTESTSUM) $(TEST_FLAGS) -count=1 -timeout 25m ./... # CI runs it with the lowest priority

test-attacks:
	@deploy/scripts/test-tools
	@test/e2e/need-envoy
	@$(GOTESTSUM) $(TEST_FLAGS) -count=1 -tags attacks ./test/attacks

test-deploy: ## Check the Helm chart, the image, the examples and the OpenAPI files against the types of their readers
	@cd test/deploy && $(GOTESTSUM) $(TEST_FLAGS) ./...
	@cd test/openapi && $(GOTESTSUM) $(TEST_FLAGS) ./...
	@cd deploy/rls-aws-token && $(GOTESTSUM) $(TEST_FLAGS) ./...

test-page: ## Test the live page in headless Chromium, and keep screenshots; installs Chromium if it is missing
	@deploy/scripts/test-tools
	@test/page/need-chromium
	@cd test/page && $(GOTESTSUM) $(TEST_FLAGS) -count=1 -timeout 8m ./...

# The tests of TLS run on the redis-server of the PATH, because these programs have no TLS.
.PHONY: test-redis-versions
test-redis-versions: ## Run the tests of Redis on Valkey 9.1; REDIS_VERSIONS="valkey-server redis-server-6.2" also runs Redis 6.2, and FAULTS=./... breaks them too
	@deploy/scripts/test-tools
	@deploy/scripts/need-redis-versions $(REDIS_VERSIONS)
	@for server in $(REDIS_VERSIONS); do \
		export RLS_TEST_REDIS_SERVER=$(CURDIR)/.tools/redis-versions/$$server; echo "$$server"; \
		$(GOTESTSUM) $(TEST_FLAGS) -count=1 ./lua ./backend/redis || exit 1; \
		[ -z "$(FAULTS)" ] || (cd test/faults && $(GOTESTSUM) $(TEST_FLAGS) -count=1 $(FAULTS)) || exit 1; \
	done

REDIS_VERSIONS ?= valkey-server

# LANGUAGES can also have node and java, which then must be installed.
LANGUAGES ?= python

.PHONY: test-clients
test-clients: build ## Run the callers of examples/clients against a service; installs the packages of LANGUAGES (python)
	@test/clients/need-grpcio
	@RLS_TEST_RLS=$(CURDIR)/bin/rls RLS_TEST_LANGUAGES="$(LANGUAGES)" $(GOTESTSUM) $(TEST_FLAGS) -count=1 -tags clients ./test/clients

# WITH_PARITY names the program and the module that the tests in test/parity compare with the incumbent.
WITH_PARITY = RLS_TEST_RLS=$(CURDIR)/bin/rls RLS_PARITY_INCUMBENT=$(lastword $(subst @, ,$(INCUMBENT)))

e2e: build ## Run the examples on a real Envoy, and compare rls with envoyproxy/ratelimit; installs both
	@deploy/scripts/test-tools
	@test/e2e/need-envoy
	@test/e2e/need-promtool
	@GOBIN=$(CURDIR)/.tools $(GO) install $(INCUMBENT)
	@$(WITH_PARITY) $(GOTESTSUM) $(TEST_FLAGS) -count=1 -timeout 10m -tags "e2e parity" ./test/e2e/... ./test/parity/sidebyside

.PHONY: rolling-restart
rolling-restart: ## Restart replicas behind Envoy with its timeout of 20 ms, which needs a quiet machine
	@deploy/scripts/test-tools
	@test/e2e/need-envoy
	ROLLING_TIMEOUT=20ms $(GO) test -tags e2e -count=1 -timeout 10m -v -run TestRollingRestart ./test/e2e

.PHONY: parity
parity: build ## Run the tests of envoyproxy/ratelimit against rls, and send the same random requests to both
	@deploy/scripts/test-tools
	@test/e2e/need-envoy
	@test/e2e/need-promtool
	@GOBIN=$(CURDIR)/.tools $(GO) install github.com/prometheus/statsd_exporter@v0.28.0
	@GOBIN=$(CURDIR)/.tools $(GO) install $(INCUMBENT)
	$(WITH_PARITY) $(GO) test -tags parity -count=1 -timeout 30m -v ./test/parity/...

# With GOGC=400 the linters use a third less CPU time. GOMEMLIMIT bounds the memory that this costs.
lint: export GOGC = 400
lint: export GOMEMLIMIT = 4GiB
lint: ## Run the linters of .golangci.yml in all modules, and actionlint for .github
	@for module in . $(NESTED_MODULES); do \
		echo "lint $$module"; \
		(cd $$module && $(GOLANGCI_LINT) run --allow-parallel-runners ./...) || exit 1; \
	done
	@$(ACTIONLINT)

.PHONY: vulnerabilities
vulnerabilities: ## Look for known vulnerabilities in the code that each module calls
	@for module in . $(NESTED_MODULES); do \
		echo "govulncheck $$module"; \
		(cd $$module && $(GOVULNCHECK) ./...) || exit 1; \
	done

bench: ## Measure the hot path; docs/lab/benchmarks.md explains the figures
	$(GO) test -run '^$$' -bench . -benchmem ./limit ./descriptors ./descriptors/override ./backend/local ./backend/denycache ./service ./test/bench

# WITH_INCUMBENT names the programs that the benchmarks compare. Without a program of the
# incumbent they measure rls only.
WITH_INCUMBENT = RLS_BENCH_PROGRAM=$(CURDIR)/bin/rls RLS_BENCH_INCUMBENT=$$(ls $(CURDIR)/.tools/service_cmd 2>/dev/null)

incumbent:
	@GOBIN=$(CURDIR)/.tools $(GO) install $(INCUMBENT) || echo "envoyproxy/ratelimit does not build here; measuring rls only"

BENCH_REDIS = $(WITH_INCUMBENT) RLS_BENCH_TABLE=$(CURDIR)/docs/lab/benchmarks.md $(GO) test -tags redis -count 1 -timeout 20m -v -run TestRedisTable ./test/bench

bench-redis: build incumbent ## Measure rls and envoyproxy/ratelimit with Redis; updates docs/lab/benchmarks.md
	@deploy/scripts/test-tools
	$(BENCH_REDIS)

bench-redis-versions: build incumbent ## Measure the same with Valkey 9.1 and Redis 6.2
	@deploy/scripts/need-redis-versions valkey-server redis-server-6.2
	RLS_TEST_REDIS_SERVER=$(CURDIR)/.tools/redis-versions/valkey-server $(BENCH_REDIS)
	RLS_TEST_REDIS_SERVER=$(CURDIR)/.tools/redis-versions/redis-server-6.2 $(BENCH_REDIS)

# A short run (BENCH_QUICK=1) takes 2 minutes.
bench-curves: build incumbent ## Measure latency and cost over load in 20 minutes; updates docs/lab/bench, docs/lab/benchmarks.md, docs/lab/scale.md
	@deploy/scripts/test-tools
	@mkdir -p docs/lab/bench
	$(WITH_INCUMBENT) RLS_BENCH_CURVES=$(CURDIR)/docs/lab/bench/curves.json $(GO) test -tags redis -count 1 -timeout 1h -v -run TestCurves ./test/bench
	@$(MAKE) simulate-scale bench-plots

# The page and the plots go to the folder bench-peers.
bench-peers: export RLS_BENCH_PEERS = $(PEERS)
bench-peers: build incumbent ## Measure other servers beside rls: PEERS='name=host:port[,pid=N][,redis=host:port] ...'
	@deploy/scripts/test-tools
	@mkdir -p bench-peers
	$(WITH_INCUMBENT) RLS_BENCH_CURVES=$(CURDIR)/bench-peers/curves.json $(GO) test -tags redis -count 1 -timeout 1h -v -run TestCurves ./test/bench
	cd test/bench/plots && $(GO) run . -run $(CURDIR)/bench-peers/curves.json -plots $(CURDIR)/bench-peers -page $(CURDIR)/bench-peers/README.md

bench-plots: ## Draw the plots and write the tables again from the figures in docs/lab/bench
	cd test/bench/plots && $(GO) test . && $(GO) run . -run $(CURDIR)/docs/lab/bench/curves.json -scale $(CURDIR)/docs/lab/bench/scale.json -plots $(CURDIR)/docs/lab/bench -page $(CURDIR)/docs/lab/benchmarks.md

simulate-scale: ## Simulate 100 replicas and 1,000,000 calls/s with the figures in docs/lab/bench; updates docs/lab/scale.md
	$(GO) run ./test/bench/scale -run docs/lab/bench/curves.json -out docs/lab/bench/scale.json -page docs/lab/scale.md

bench-leases: build ## Measure what leases save; prints a table for docs/lab/benchmarks.md
	@deploy/scripts/test-tools
	RLS_BENCH_PROGRAM=$(CURDIR)/bin/rls $(GO) test -tags redis -count 1 -v -run TestLeases ./test/bench

.PHONY: bench-regions
bench-regions: build ## Measure what it costs a region to share a limit, and simulate five regions with 100 replicas each; docs/lab/regions.md has the tables
	@deploy/scripts/test-tools
	RLS_BENCH_PROGRAM=$(CURDIR)/bin/rls $(GO) test -tags redis -count 1 -v -run TestRegions ./test/bench
	cd test/simulate && $(GO) test -count 1 -timeout 60m -v -run ManyReplicasOfRegions . -region-replicas 100

bench-before: build ## Compare this build with an earlier one: BEFORE=path of its rls
	@deploy/scripts/test-tools
	RLS_BENCH_PROGRAM=$(CURDIR)/bin/rls RLS_BENCH_BEFORE=$(abspath $(BEFORE)) \
		$(GO) test -tags redis -count 1 -v -run TestBeforeAndAfter ./test/bench

bench-observers: build ## Compare a build that observes no calls with this one: what metrics and logs cost
	@deploy/scripts/test-tools
	@$(GO) build -trimpath -ldflags '-X main.observers=off' -o .tools/rls-unobserved ./cmd/rls
	RLS_BENCH_PROGRAM=$(CURDIR)/bin/rls RLS_BENCH_BEFORE=$(CURDIR)/.tools/rls-unobserved \
		$(GO) test -tags redis -count 1 -v -run TestBeforeAndAfter ./test/bench
	$(GO) test -run '^$$' -bench BenchmarkObservers -count 5 -cpu 1 ./cmd/rls

.PHONY: bench-partitions
bench-partitions: build ## Measure what the number of partitions costs a Redis Cluster; docs/lab/costs.md has the table
	@deploy/scripts/test-tools
	RLS_BENCH_PROGRAM=$(CURDIR)/bin/rls $(GO) test -tags redis -count 1 -v -run TestPartitions ./test/bench

.PHONY: bench-rules
bench-rules: build ## Measure memory, load and reload of 100,000 rules; docs/lab/benchmarks.md explains the figures
	RLS_BENCH_PROGRAM=$(CURDIR)/bin/rls $(GO) test -tags redis -count 1 -v -run TestManyRules ./test/bench

.PHONY: bench-client
bench-client: build ## Let three processes wait for the permits of one limit; prints the table of docs/lab/costs.md
	@deploy/scripts/test-tools
	RLS_BENCH_PROGRAM=$(CURDIR)/bin/rls $(GO) test -tags redis -count 1 -v -run 'TestClient$$' ./test/bench

.PHONY: bench-changes
bench-changes: ## Measure how long changes of run time take to reach three replicas; docs/lab/costs.md has the table
	@deploy/scripts/test-tools
	RLS_TEST_FULL=1 $(GO) test -count=1 -v -run TestChangesReachAllReplicas ./cmd/rls | grep p50

faults: ## Break real Redis servers in all ways of docs/lab/faults.md at full length, and print the tables
	@deploy/scripts/test-tools
	@cd test/faults && $(GO) test -count=1 -timeout 10m -run 'Faults|Prices|Distant' -args -full

histories: ## Record calls of real replicas while real Redis servers break, and check that an order explains the answers
	@deploy/scripts/test-tools
	@cd test/faults && $(GO) test -count=1 -timeout 20m -v -run Histor . -args -full

SOAK ?= 10m

soak: ## Run replicas under random faults for SOAK (10m), and check that goroutines, files and memory stay flat
	@deploy/scripts/test-tools
	@cd test/faults && $(GO) test -tags soak -count=1 -timeout 24h -v -run TestSoak . -args -soak $(SOAK)

TRACES ?= 1000000

.PHONY: spec
spec: ## Compare TRACES (1000000) random traces of the service with a sequential reference, from the seed FIRST (0) on; SEED=N repeats one
	@TRACES=$(TRACES) FIRST=$(FIRST) SEED=$(SEED) $(GO) test -count=1 -timeout 6h -v -run TestServiceAnswersAsTheReference ./test/spec

SEEDS ?= 1-1000

simulate: ## Run the simulation of docs/lab/simulation.md with SEEDS (1-1000); TRACE=FILE keeps the events of the last seed
	@cd test/simulate && $(GO) test -count=1 -timeout 3h -v -run TestNoSeedBreaksAnInvariant . -args -seeds $(SEEDS) -schedule "$(SCHEDULE)" -trace "$(TRACE)"

simulate-mutants: ## Put known defects into the code, and check that the simulation finds each; SEARCH=1-20 lists which of these seeds find it
	@cd test/simulate && $(GO) test -count=1 -timeout 3h -tags mutants -v -run '^TestSimulationFindsEachMutant$$' . -args -search "$(SEARCH)"

# A run of all packages takes 50 minutes on two cores, half of them for backend/redis: make mutants PACKAGES="limit service ...".
MUTANTS_SINCE ?= HEAD~1

.PHONY: mutants
mutants: ## Change the code of PACKAGES (those changed since MUTANTS_SINCE, for 150 s) in small ways, and check that its tests notice
	@nice $(GO) run ./test/mutants -since $(MUTANTS_SINCE) $(if $(PACKAGES),,-for 150s) $(MUTANTS_FLAGS) $(PACKAGES)

.PHONY: simulate-quota
simulate-quota: ## Simulate FLEET (1000) Envoys that share a limit by quotas; docs/quota.md has the figures
	$(GO) test -count=1 -v -run TestFleetUsesLimit ./limit/quota -args -fleet $(or $(FLEET),1000)
	$(GO) test -count=1 -v -run TestManyEnvoysShareManyLimits ./service/quota -args -envoys 1000 -buckets 10000
	$(GO) test -count=1 ./limit/quota -args -seeds 2000 -worlds 500000

.PHONY: model
model: ## Check the models in docs/model with TLC, which must also find the mistakes that they plant; needs Java
	@test/model/check

attacks: ## Attack the running service with hostile clients, and print the table of docs/lab/attacks.md
	@deploy/scripts/test-tools
	@test/e2e/need-envoy
	RLS_ATTACKS=10s $(GO) test -count=1 -timeout 10m -v -tags attacks ./test/attacks
	@cd test/faults && $(GO) test -count=1 -run StepsOfDistantRoundTrip -args -full

fuzz: ## Fuzz each target for FUZZTIME (20s)
	@deploy/oss-fuzz/targets | while read -r folder name; do \
		(cd "$$folder" && $(GO) test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) .) </dev/null || exit 1; \
	done

docs: ## Write the pages, schemas and pictures of docs that come from the code, and the copies in the Helm chart
	$(GO) test -run UpToDate ./cmd/rls ./cmd/rls/env ./descriptors/limitsfile ./internal/whatif/limitstest -update
	cd test/openapi && $(GO) run .
	cd test/bench/plots && $(GO) run . -patterns $(CURDIR)/docs/patterns -page $(CURDIR)/docs/lab/algorithms.md
	@$(MAKE) --no-print-directory chart-docs

# The chart can't read files outside its folder, so it has copies.
.PHONY: chart-docs chart-readme
chart-docs: chart-readme
	cp deploy/prometheus/alerts.yaml deploy/helm/rls/files/alerts.yaml
	cp deploy/grafana/rls.json deploy/helm/rls/files/dashboard.json
	cp docs/schema/limits.json deploy/helm/rls/files/limits-schema.json
	awk -F'`' '/^## /{exit} /^\| `[A-Z]/{print $$2}' docs/settings.md > deploy/helm/rls/files/settings.txt

chart-readme:
	@$(GO) run github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2 --log-level warning --chart-search-root deploy/helm/rls --sort-values-order file $(HELM_DOCS_FLAGS)

# The folder .tools/docs has mkdocs with the versions in deploy/scripts/docs/requirements.txt.
docs-site: ## Build the docs as a web site in the folder site, and check its links and pictures
	@cd test/bench/plots && $(GO) test -count=1 .
	@deploy/scripts/docs/need-mkdocs
	@NO_MKDOCS_2_WARNING=1 .tools/docs/bin/mkdocs build --strict --clean

release-snapshot: ## Build the files of a release for all platforms into dist; the commit needs no tag
	@deploy/scripts/release

release: export RELEASE = 1
release: ## Build the files of a release of the tag of HEAD into dist
	@deploy/scripts/release

image: ## Build the image rls with Docker
	docker build -t rls .

test-release: ## Build a release for this machine, compare it with a second build, and install the deb and the rpm in a fresh root
	@test/release/need-tools
	@$(GOTESTSUM) $(TEST_FLAGS) -count=1 -timeout 10m -tags release ./test/release

test-upgrade: ## Replace replicas of the last version by replicas of this version, with one Redis, and go back
	@deploy/scripts/test-tools
	@$(GOTESTSUM) $(TEST_FLAGS) -count=1 -timeout 10m -tags upgrade ./test/upgrade

reproducible: ## Build a release twice, in two folders with empty caches, and compare all bytes
	@test/release/need-tools
	$(GO) test -count=1 -timeout 30m -tags release -run Reproducible -v ./test/release -args -empty-caches

tidy: ## Tidy go.mod in all modules; needed after a change of go.mod
	@for module in . $(NESTED_MODULES); do (cd $$module && $(GO) mod tidy) || exit 1; done
