package decisionlog

import (
	"cmp"
	"io"
	"log/slog"
	"os"
)

// output is the file or the stream of a Log. It logs the first failed write, and the first write that works again.
type output struct {
	path   string    // empty for a stream
	writer io.Writer // nil if the file is not open
	log    *slog.Logger

	isFailureLogged    bool // the last write failed, and log has the error
	endsWithPartOfLine bool // the last written line is incomplete
}

// filePermissions lets the owner read and write, and the group read. Other users may not read values of requests.
const filePermissions = 0o640

func (o *output) reopen() {
	if o.path == "" {
		return
	}
	o.close()
	file, err := os.OpenFile(o.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, filePermissions)
	if err != nil {
		o.reportError(err)
		return
	}
	o.writer, o.endsWithPartOfLine = file, endsWithPartOfLine(file)
}

// endsWithPartOfLine reports whether a file ends in the middle of a line. A full disk or a crash can be the reason.
func endsWithPartOfLine(file *os.File) bool {
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false
	}
	reader, err := os.Open(file.Name())
	if err != nil {
		return false
	}
	defer reader.Close()
	var lastByte [1]byte
	_, err = reader.ReadAt(lastByte[:], info.Size()-1)
	return err == nil && lastByte[0] != '\n'
}

func (o *output) close() {
	if file, ok := o.writer.(*os.File); ok && o.path != "" {
		_ = file.Close() // an error loses nothing, because all lines are written
		o.writer = nil
	}
}

func (o *output) reopenIfMoved() {
	if file, isFile := o.writer.(*os.File); isFile && o.path != "" {
		openedFile, err := file.Stat()
		fileAtPath, pathErr := os.Stat(o.path)
		if err == nil && pathErr == nil && os.SameFile(openedFile, fileAtPath) {
			return
		}
	}
	o.reopen()
}

// write writes lines and reports whether it has written all of them.
func (o *output) write(lines []byte) bool {
	if o.writer == nil {
		return false
	}
	if o.endsWithPartOfLine {
		lines = append([]byte("\n"), lines...)
	}
	n, err := o.writer.Write(lines)
	if n > 0 {
		o.endsWithPartOfLine = lines[n-1] != '\n'
	}
	if err != nil {
		o.reportError(err)
		return false
	}
	if o.isFailureLogged {
		o.isFailureLogged = false
		o.log.Info("decision log written again", "path", cmp.Or(o.path, "stdout"))
	}
	return true
}

func (o *output) reportError(err error) {
	if !o.isFailureLogged {
		o.isFailureLogged = true
		o.log.Error("decision log not written; its records are dropped", "path", cmp.Or(o.path, "stdout"), "error", err)
	}
}
