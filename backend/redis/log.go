package redis

import (
	"context"
	"fmt"
	"log/slog"

	goredis "github.com/redis/go-redis/v9"
)

// LogTo sends the messages of go-redis to log at debug level instead of stderr. They are
// mostly about connections, and the errors of this package repeat what matters. LogTo
// affects the whole process.
func LogTo(log *slog.Logger) { goredis.SetLogger(clientLog{log}) }

type clientLog struct{ log *slog.Logger }

// Printf implements the logger interface of go-redis.
func (l clientLog) Printf(ctx context.Context, format string, v ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, v...))
	}
}
