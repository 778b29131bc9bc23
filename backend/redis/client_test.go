package redis

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestGoRedisLogsAtDebugLevel(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		var b bytes.Buffer
		l := clientLog{slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: level}))}
		l.Printf(t.Context(), "connection pool: failed to dial after %d attempts", 3)
		assert.Equal(t, level == slog.LevelDebug, b.Len() > 0)
		if b.Len() > 0 {
			assert.Contains(t, b.String(), `level=DEBUG msg="redis client" message="connection pool: failed to dial after 3 attempts"`)
		}
	}
}
