package decisionlog

import (
	"cmp"
	"io"
	"log/slog"
	"os"
)

// output is the file or the stream of a Log. It logs when writing starts to fail and when it works again.
type output struct {
	path string    // empty for a stream
	w    io.Writer // nil if the file is not open
	log  *slog.Logger

	failed bool // the log has the error
	torn   bool // the last line is not complete
}

const filePermissions = 0o640 // the owner may write, and a group read, the values of requests

func (o *output) reopen() {
	if o.path == "" {
		return
	}
	o.close()
	f, err := os.OpenFile(o.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, filePermissions)
	if err != nil {
		o.reportError(err)
		return
	}
	o.w, o.torn = f, endsTorn(f)
}

// endsTorn reports whether a file ends in the middle of a line, after a full disk or the end of a process.
func endsTorn(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false
	}
	reader, err := os.Open(f.Name())
	if err != nil {
		return false
	}
	defer reader.Close()
	var last [1]byte
	_, err = reader.ReadAt(last[:], info.Size()-1)
	return err == nil && last[0] != '\n'
}

func (o *output) close() {
	if f, ok := o.w.(*os.File); ok && o.path != "" {
		_ = f.Close() // all lines are written
		o.w = nil
	}
}

// reopenIfMoved opens the path again if the file is not open, or if a program has moved or removed it.
func (o *output) reopenIfMoved() {
	if f, isFile := o.w.(*os.File); isFile && o.path != "" {
		opened, err := f.Stat()
		current, pathErr := os.Stat(o.path)
		if err == nil && pathErr == nil && os.SameFile(opened, current) {
			return
		}
	}
	o.reopen()
}

// write writes lines and reports whether it has written all.
func (o *output) write(lines []byte) bool {
	if o.w == nil {
		return false
	}
	if o.torn {
		lines = append([]byte("\n"), lines...)
	}
	n, err := o.w.Write(lines)
	if n > 0 {
		o.torn = lines[n-1] != '\n'
	}
	if err != nil {
		o.reportError(err)
		return false
	}
	if o.failed {
		o.failed = false
		o.log.Info("decision log written again", "path", cmp.Or(o.path, "stdout"))
	}
	return true
}

// reportError logs an error, unless the log has one since the last write that worked.
func (o *output) reportError(err error) {
	if !o.failed {
		o.failed = true
		o.log.Error("decision log not written; its records are dropped", "path", cmp.Or(o.path, "stdout"), "error", err)
	}
}
