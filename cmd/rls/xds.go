package main

import (
	"runtime/debug"

	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/source/xds"
)

// xdsLimits keeps the limits of an xDS server in force.
type xdsLimits struct {
	*limits
	options descriptors.Options
	noted   map[string]bool // what is remarked about the update in force
}

// sourceXDS is the name of the xDS server in metrics.
const sourceXDS = "xds"

// newXDS makes the client that keeps l as the xDS server says, while it runs.
// Until the server has sent good limits for the first time the service is
// unhealthy, unless it is to start without.
func newXDS(s *env.Settings, l *limits) (*xds.Client, error) {
	x := &xdsLimits{limits: l, options: descriptors.Options{MergeDomains: s.MergeDomainConfig}}
	o := xds.Options{
		Server:          s.XDSServer,
		NodeID:          s.XDSNodeID,
		NodeMetadata:    s.XDSNodeMetadata,
		Headers:         s.XDSHeaders,
		MaxMessageBytes: s.XDSMaxMessageBytes,
		Backoff:         xds.Backoff{Initial: min(s.XDSBackoffInitial, s.XDSBackoffMax), Max: s.XDSBackoffMax},
		Apply:           x.apply,
		Refused:         func(err error) { l.refuse(err, true) },
		State: func(err error) {
			l.observer.SourceState(sourceXDS, err)
			l.starve(err)
		},
		Log: l.log,
	}
	if s.XDSBackoffJitter {
		o.Backoff.Jitter = min(s.XDSBackoffRandom, 1)
	}
	if s.XDSUseTLS {
		o.TLS = &xds.TLS{
			CertFile:   s.XDSTLSCert,
			KeyFile:    s.XDSTLSKey,
			CAFile:     s.XDSTLSCACert,
			ServerName: s.XDSTLSSAN,
		}
	}
	c, err := xds.New(o)
	if err == nil && !s.ForceStartWithoutInitialConfig {
		l.health.Set("xds", false, "the xDS server has not sent good limits yet")
	}
	return c, err
}

func (x *xdsLimits) apply(version string, resources []*confv3.RateLimitConfig) error {
	defer debug.SetGCPercent(debug.SetGCPercent(50)) // as for files
	cfg, err := descriptors.CompileXDS(resources, x.options)
	if err != nil {
		return err
	}
	noted := map[string]bool{}
	for _, p := range cfg.Warnings {
		if noted[p.String()] = true; !x.noted[p.String()] {
			x.log.Warn("xDS resource: " + p.String())
		}
	}
	x.noted = noted
	x.install(cfg, "xds_version", version, "resources", len(resources))
	x.health.Set("xds", true, "")
	return nil
}
