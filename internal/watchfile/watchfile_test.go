package watchfile

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFileIsReadAgainAfterEachChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("1")
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var inForce []string
		f, err := Read(Options{
			Path: path, Content: "tokens", MaxBytes: 10, Log: slog.New(slog.NewTextHandler(&log, nil)),
			Apply: func(data []byte) error {
				if string(data) == "bad" {
					return errors.New("not good")
				}
				inForce = append(inForce, string(data))
				return nil
			},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var watching sync.WaitGroup
		watching.Go(func() { f.Watch(ctx) })
		pass := func() { time.Sleep(11 * time.Second); synctest.Wait() }
		for _, step := range []struct {
			text string
			want []string // contents that came into force
			log  string
		}{
			{"1", []string{"1"}, ""},
			{"2", []string{"1", "2"}, "tokens reloaded"},
			{"bad", []string{"1", "2"}, "tokens: not good"},
			{strings.Repeat("x", 11), []string{"1", "2"}, "want at most 10 bytes"},
			{"", []string{"1", "2", ""}, "tokens reloaded"},
		} {
			log.Reset()
			write(step.text)
			pass()
			assert.Equal(t, step.want, inForce)
			assert.Contains(t, log.String(), step.log)
			assert.LessOrEqual(t, strings.Count(log.String(), "\n"), 1, "a problem is logged once")
		}
		log.Reset()
		require.NoError(t, os.Remove(path))
		pass()
		assert.Contains(t, log.String(), "the former ones stay in force")
		cancel()
		watching.Wait()
	})
}

func TestFirstReadMustSucceed(t *testing.T) {
	_, err := Read(Options{Path: filepath.Join(t.TempDir(), "none"), Apply: func([]byte) error { return nil }})
	assert.ErrorIs(t, err, os.ErrNotExist)
}
