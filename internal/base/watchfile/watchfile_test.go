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

// lockedBuffer is a buffer of log lines. It needs a lock, because a pause in a test does not synchronize goroutines.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf.Reset()
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestChangedFileComesIntoForceIfItIsValid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("1")
	synctest.Test(t, func(t *testing.T) {
		var log lockedBuffer
		var inForce []string // guarded by the mutex of log
		file, err := Read(Options{
			Paths: []string{path}, ContentName: "tokens", Log: slog.New(slog.NewTextHandler(&log, nil)),
			Apply: func(contents [][]byte) error {
				data := contents[0]
				if string(data) == "bad" {
					return errors.New("not good")
				}
				log.mu.Lock()
				defer log.mu.Unlock()
				inForce = append(inForce, string(data))
				return nil
			},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var watcherGroup sync.WaitGroup
		watcherGroup.Go(func() { file.Watch(ctx) })
		waitForReads := func() { time.Sleep(11 * time.Second); synctest.Wait() }
		for _, step := range []struct {
			text string
			want []string // contents that came into force
			log  string
		}{
			{"1", []string{"1"}, ""},
			{"2", []string{"1", "2"}, "tokens reloaded"},
			{"bad", []string{"1", "2"}, "not good"},
			{strings.Repeat("x", 1<<20+1), []string{"1", "2"}, "want at most 1048576 bytes"},
			{"", []string{"1", "2", ""}, "tokens reloaded"},
		} {
			log.Reset()
			write(step.text)
			waitForReads()
			lines := log.String()
			assert.Equal(t, step.want, inForce)
			assert.Contains(t, lines, step.log)
			assert.LessOrEqual(t, strings.Count(lines, "\n"), 1, "a problem is logged once")
		}
		log.Reset()
		require.NoError(t, os.Remove(path))
		waitForReads()
		assert.Contains(t, log.String(), "tokens rejected; the last tokens stay in force")
		cancel()
		watcherGroup.Wait()
	})
}

func TestHalfWrittenFileIsNotApplied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("old")
	inForce := ""
	file, err := Read(Options{Paths: []string{path}, Apply: func(c [][]byte) error { inForce = string(c[0]); return nil }})
	require.NoError(t, err)
	for _, step := range []struct{ text, want string }{
		{"", "old"}, {"ne", "old"}, {"new", "old"}, {"new", "new"}, {"", "new"}, {"", ""},
	} {
		write(step.text)
		file.Reload()
		assert.Equal(t, step.want, inForce, "after %q", step.text)
	}
}

func TestFirstReadMustSucceed(t *testing.T) {
	_, err := Read(Options{Paths: []string{filepath.Join(t.TempDir(), "none")}, Apply: func([][]byte) error { return nil }})
	assert.ErrorIs(t, err, os.ErrNotExist)
}
