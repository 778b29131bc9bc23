package server

import (
	"bufio"
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStreamsEndWhenTheListenerStops(t *testing.T) {
	t.Parallel()
	streaming := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("first\n"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		_, _ = w.Write([]byte("last\n"))
	})
	s := start(t, Options{DebugPages: []Page{{Path: "/stream", Handler: streaming, IsStream: true}}})
	resp, err := http.Get("http://" + s.DebugAddr().String() + "/stream")
	require.NoError(t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	require.True(t, lines.Scan())
	assert.Equal(t, "first", lines.Text())

	// Only the end of the context lets the handler write its last line.
	require.NoError(t, s.optionalListener("debug").stop(context.Background(), func() {}))
	require.True(t, lines.Scan())
	assert.Equal(t, "last", lines.Text())
}
