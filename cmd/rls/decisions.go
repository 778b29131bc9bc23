package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/internal/observe/events"
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
func newDecisions(p *process, s *env.Settings, e *events.Events) *decisions {
	hash := decisionlog.NewHash(s.DecisionLogHashKey)
	d := &decisions{hub: decisionlog.NewHub(nil, hash)}
	d.observers = []service.Observer{d.hub, decisionlog.CallLog{Log: e.Log, Hash: hash}}
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
		Observer:     e.Metrics.DecisionLog(),
		Log:          e.Log,
	})
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
			e.Log.Warn("decision log cut", "reason", "its file or stdout takes no more lines")
		}
	})
	return d
}
