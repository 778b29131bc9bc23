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

// proxy forwards connections to a server and can disturb them.
type proxy struct {
	*toxiproxy.Proxy
	t *testing.T
}

// startProxy listens on address listen, where port 0 means a free port.
func startProxy(t *testing.T, listen, upstream string) *proxy {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &proxy{toxiproxy.NewProxy(server, t.Name(), listen, upstream), t}
	require.NoError(t, p.Start())
	t.Cleanup(p.Stop)
	return p
}

// addToxic disturbs the given share of connections in both directions.
func (p *proxy) addToxic(kind string, share float64, attributes string) {
	for _, direction := range []string{"upstream", "downstream"} {
		_, err := p.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
			`{"name": %q, "type": %q, "stream": %q, "toxicity": %v, "attributes": {%s}}`, direction, kind, direction, share, attributes)))
		require.NoError(p.t, err)
	}
}

func (p *proxy) removeToxics() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	p.Toxics.ResetToxics(ctx)
}
