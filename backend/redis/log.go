package redis

import (
	"context"
	"fmt"
	"log/slog"

	goredis "github.com/redis/go-redis/v9"
)

// LogTo sends what go-redis has to say (of connections, mostly) to log at debug
// level, instead of stderr. It holds for the whole process. What matters of it,
// errors tell as well.
func LogTo(log *slog.Logger) { goredis.SetLogger(clientLog{log}) }

type clientLog struct{ log *slog.Logger }

// Printf implements go-redis' logger.
func (l clientLog) Printf(ctx context.Context, format string, v ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, v...))
	}
}
