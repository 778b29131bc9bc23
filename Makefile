GO ?= go
LIMITS ?= examples/limits.yaml
FUZZTIME ?= 20s
GOLANGCI_LINT ?= $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.5.0
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)

.PHONY: help run build test lint bench bench-redis faults fuzz docs e2e test-deploy

help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## Serve examples/limits.yaml (or LIMITS=…), counting in the process
	@echo "Serving $(LIMITS). Try in another terminal:"
	@echo "  bin/rls hit -d shop remote_address=10.0.0.1 -n 8"
	@LIMITS_PATH=$(LIMITS) bin/rls serve

build: ## Build bin/rls
	@$(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/rls ./cmd/rls

test: ## Run all tests, with the race detector
	@scripts/test-tools
	$(GO) vet ./...
	$(GO) test -race -shuffle=on ./...
	$(GO) test -run Alloc ./... # counted without the race detector, which allocates

e2e: ## Run the examples on a real Envoy; what is missing it installs
	@scripts/test-tools
	@test/e2e/need-envoy
	$(GO) test -count=1 -timeout 5m -tags e2e ./test/e2e/...

test-deploy: ## Check the deployments against the types of those who read them
	cd test/deploy && $(GO) vet ./... && $(GO) test ./...

lint: ## Run the linters of .golangci.yml
	$(GOLANGCI_LINT) run ./...

bench: ## Measure the hot path; figures and how to read them: docs/benchmarks.md
	$(GO) test -run '^$$' -bench . -benchmem ./limit ./descriptors ./backend/local ./backend/denycache ./service ./bench

INCUMBENT = github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36

bench-redis: build ## Measure over Redis, beside the incumbent; writes into docs/benchmarks.md
	@scripts/test-tools
	@GOBIN=$(CURDIR)/.tools $(GO) install $(INCUMBENT) || echo "the incumbent can't be built here; going on without it"
	RLS_BENCH_PROGRAM=$(CURDIR)/bin/rls RLS_BENCH_INCUMBENT=$$(ls $(CURDIR)/.tools/service_cmd 2>/dev/null) RLS_BENCH_TABLE=$(CURDIR)/docs/benchmarks.md \
		$(GO) test -tags redis -count 1 -v -run TestRedisTable ./bench

faults: ## Break real Redis servers under load, in all ways of docs/failure.md, and print what happens
	@scripts/test-tools
	@cd test/faults && $(GO) test -count=1 -timeout 10m -args -full

fuzz: ## Fuzz each target for FUZZTIME (20s)
	@for target in $$(grep -rlE '^func Fuzz' --include='*_test.go' .); do \
		for name in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' $$target); do \
			$(GO) test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) ./$$(dirname $$target) || exit 1; \
		done; \
	done

docs: ## Write docs/settings.md from the code
	$(GO) run ./cmd/rls settings > docs/settings.md
