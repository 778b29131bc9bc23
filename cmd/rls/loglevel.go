package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/server"
)

// logLevelPath is the path of the page that changes LOG_LEVEL.
const logLevelPath = "/loglevel"

// logLevel returns the page that shows and changes the level of the log. The page is
// private, because level debug logs values of requests and slows calls.
func (p privatePages) logLevel(level *slog.LevelVar) server.Page {
	return p.newPage(server.Page{
		Path:    logLevelPath,
		Help:    "GET shows the level of the log; PUT with debug, info, warn or error as the body changes it; " + p.help(),
		Handler: logLevelHandler(level, p.log),
	})
}

func logLevelHandler(level *slog.LevelVar, log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		switch r.Method {
		case http.MethodGet:
		case http.MethodPut:
			const maxBody = 100
			body, _ := io.ReadAll(io.LimitReader(r.Body, maxBody))
			text := strings.TrimSpace(string(body))
			newLevel, ok := env.ParseLogLevel(text)
			if !ok {
				http.Error(w, fmt.Sprintf("log level: got %q, want debug, info, warn or error", text), http.StatusBadRequest)
				return
			}
			setLogLevel(level, newLevel, log.With("by", callerName(r), "from_address", r.RemoteAddr))
		default:
			w.Header().Set("Allow", "GET, PUT")
			http.Error(w, fmt.Sprintf("log level: got method %q, want GET or PUT", r.Method), http.StatusMethodNotAllowed)
			return
		}
		fmt.Fprintln(w, strings.ToLower(level.Level().String()))
	}
}

// setLogLevel changes the level and logs the change at the more talkative of both levels,
// so that the change is in the log.
func setLogLevel(level *slog.LevelVar, newLevel slog.Level, log *slog.Logger) {
	old := level.Level()
	level.Set(min(old, newLevel))
	log.Warn("log level changed", "old", strings.ToLower(old.String()), "new", strings.ToLower(newLevel.String()))
	level.Set(newLevel)
}
