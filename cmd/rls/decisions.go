package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/service"
)

// decisionLogCloseTimeout bounds the time that the decision log has at the end to write the
// records in its buffer.
const decisionLogCloseTimeout = 3 * time.Second

// decisions are the observers that describe decisions.
type decisions struct {
	hub       *decisionlog.Hub
	observers []service.Observer
}

// newDecisions returns the observers of the settings, and starts the decision log.
func newDecisions(p *process, s *env.Settings, meter *metrics.Metrics, log *slog.Logger) *decisions {
	hash := decisionlog.NewHash(s.DecisionLogHashKey)
	d := &decisions{hub: decisionlog.NewHub(nil, hash)}
	d.observers = []service.Observer{d.hub, decisionlog.CallLog{Log: log, Hash: hash}}
	if s.DecisionLog == env.DecisionLogOff {
		return d
	}
	l := decisionlog.NewLog(decisionlog.LogOptions{
		All:          s.DecisionLog == env.DecisionLogAll,
		Sample:       s.DecisionLogSample,
		MaxPerSecond: s.DecisionLogMaxPerSecond,
		Path:         s.DecisionLogPath,
		Writer:       os.Stdout,
		Hash:         hash,
		Log:          log,
	})
	meter.DecisionLog(l.Stats)
	if s.DecisionLogPath == "" {
		// Without this, the end of the reader of stdout would end the service.
		signal.Ignore(syscall.SIGPIPE)
	} else {
		p.onHangup(l.Reopen)
	}
	d.observers = append(d.observers, l)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Run(ctx)
	}()
	p.atEnd(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(decisionLogCloseTimeout):
			log.Warn("decision log cut", "reason", "its file or stdout takes no more lines")
		}
	})
	return d
}

// page returns the page of the live stream.
func (d *decisions) page(callers *admin.Callers, log *slog.Logger) server.Page {
	return privatePage(callers, server.Page{
		Path:    decisionsPath,
		Help:    "a stream of live decisions, for rls tail; " + privateHelp(callers),
		Handler: d.hub,
		Stream:  true,
	}, log)
}
