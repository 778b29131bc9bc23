package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// proxy is a way to a server that can be made worse.
type proxy struct {
	*toxiproxy.Proxy
	t *testing.T
}

// startProxy listens on listen; a port of 0 means a free one.
func startProxy(t *testing.T, listen, upstream string) *proxy {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &proxy{toxiproxy.NewProxy(server, t.Name(), listen, upstream), t}
	require.NoError(t, p.Start())
	t.Cleanup(p.Stop)
	return p
}

// worsen adds a toxic in both directions, to that share of connections.
func (p *proxy) worsen(kind string, share float64, attributes string) {
	for _, stream := range []string{"upstream", "downstream"} {
		_, err := p.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
			`{"name": %q, "type": %q, "stream": %q, "toxicity": %v, "attributes": {%s}}`, stream, kind, stream, share, attributes)))
		require.NoError(p.t, err)
	}
}

// mend takes all toxics away.
func (p *proxy) mend() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	p.Toxics.ResetToxics(ctx)
}
