package main

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/admin/page"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

// defaultGRPCPort is the port that rls hit asks by default.
const defaultGRPCPort = 8081

// livePage returns the live page and its assets.
func livePage(s *env.Settings, private privatePages, h live.Handlers, x *explain.Explainer) []server.Page {
	o := page.Options{
		Snapshot: h.SnapshotFor,
		Rules:    h.Live.Rules,
		Rule:     h.RuleFor,
		Explain: func(r *http.Request, domain, descriptor string) (*explain.Report, error) {
			if !private.admits(r) {
				return nil, errors.New("explain shows counters: " + private.refusal() + ". Sign in, or use the command rls explain --admin URL")
			}
			req, err := explain.NewRequest(domain, []string{descriptor}, "")
			if err != nil {
				return nil, err
			}
			return x.Explain(r.Context(), req), nil
		},
		Links: []page.Link{
			{Href: "/rlconfig", Name: "Limits"},
			{Href: "/rlconfig/problems", Name: "Problems"},
			{Href: "/metrics", Name: "Metrics"},
			{Href: "/endpoints", Name: "All pages"},
		},
		Log: private.log,
	}
	for _, source := range backend.Sources() {
		o.Sources = append(o.Sources, source.String())
	}
	switch {
	case s.GRPCUDS != "":
		o.GRPCAddr = "unix://" + s.GRPCUDS
	case s.GRPCPort != defaultGRPCPort && s.GRPCPort != 0:
		o.GRPCAddr = fmt.Sprintf("localhost:%d", s.GRPCPort)
	}
	var pages []server.Page
	if private.hasTokens() {
		o.Links = append(o.Links, page.Link{Href: signInPath, Name: "Sign in"})
		help := "asks a browser for a token of ADMIN_TOKEN, as the password of any user"
		pages = append(pages, server.Page{Path: signInPath, Help: help, Handler: http.HandlerFunc(private.signIn)})
	}
	return append(pages,
		server.Page{Path: page.Path, Help: "live page: state, traffic, rules, keys and changes", Handler: page.New(o)},
		server.Page{Path: page.AssetsPath, Handler: page.Assets()})
}
