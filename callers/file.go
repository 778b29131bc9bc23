package callers

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/internal/wait"
)

// interval is the time between two reads of the file.
const interval = time.Second

// File keeps the bindings of a file in force. After a change, the new bindings are in force
// within two intervals. If the file is invalid, the last valid bindings stay in force.
type File struct {
	path    string
	log     *slog.Logger
	observe func(err error)

	current atomic.Pointer[Bindings]
	applied []byte // the content that was parsed last
	seen    []byte // the content of the last read
	lastErr string // the error logged last
}

// Open reads the file and returns an error if it is invalid. observe is called after each
// change, with the reason if the file was rejected.
func Open(path string, observe func(err error), log *slog.Logger) (*File, error) {
	f := &File{path: path, observe: observe, log: log}
	data, err := f.read()
	if err != nil {
		return nil, err
	}
	b, err := Parse(path, data)
	if err != nil {
		return nil, err
	}
	f.current.Store(b)
	f.applied, f.seen = data, data
	return f, nil
}

// Check returns an error if a file is invalid.
func Check(path string) error {
	_, err := Open(path, func(error) {}, slog.New(slog.DiscardHandler))
	return err
}

// Bindings returns the bindings in force.
func (f *File) Bindings() *Bindings { return f.current.Load() }

// Run applies changes of the file until ctx is done.
func (f *File) Run(ctx context.Context) {
	for wait.Sleep(ctx, interval) {
		f.reload()
	}
}

// reload applies the file if it has changed. It applies a content that two reads have found,
// because somebody may be writing the file.
func (f *File) reload() {
	data, err := f.read()
	if err == nil {
		isSettled := bytes.Equal(data, f.seen)
		f.seen = data
		if !isSettled || bytes.Equal(data, f.applied) && f.lastErr == "" {
			return
		}
		var b *Bindings
		if b, err = Parse(f.path, data); err == nil {
			f.current.Store(b)
			f.applied, f.lastErr = data, ""
			f.log.Info("callers reloaded", "file", f.path, "callers", len(b.list))
			f.observe(nil)
			return
		}
	}
	if err.Error() != f.lastErr {
		f.lastErr = err.Error()
		f.log.Error("callers rejected; the last callers stay in force", "file", f.path, "error", err)
		f.observe(err)
	}
}

// read returns the content of the file, or an error if it has more than MaxFileBytes.
func (f *File) read() ([]byte, error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, MaxFileBytes+1))
	return data, errors.Join(err, file.Close())
}
