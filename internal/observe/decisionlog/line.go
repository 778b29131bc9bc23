package decisionlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// Line is a line of the stream or of the log: a Record, or the number of dropped records.
type Line struct {
	Record
	Dropped uint64 `json:"dropped"`
}

// Drops is a line about dropped records.
type Drops struct {
	Time    time.Time `json:"time"`
	Dropped uint64    `json:"dropped"`
	Reason  string    `json:"reason"`
}

// EncodeLine returns v as a line of JSON. It escapes characters that a terminal does not print.
func EncodeLine[T Record | Drops](v T) []byte {
	var b bytes.Buffer
	appendLine(&b, v)
	return b.Bytes()
}

// appendLine appends v as a line of JSON to b, as EncodeLine does.
func appendLine(b *bytes.Buffer, v any) {
	start := b.Len()
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false) // paths of rules contain >
	_ = encoder.Encode(v)        // can't fail, because all values of records have a JSON form
	for _, c := range b.Bytes()[start:] {
		if c >= 0x7f {
			line := string(b.Bytes()[start:])
			b.Truncate(start)
			appendPrintable(b, line)
			return
		}
	}
}

// appendPrintable appends a line of JSON to b. If a terminal does not print a character, appendPrintable writes a JSON
// escape. Only strings contain such characters. The encoder has already escaped all characters below the space.
func appendPrintable(b *bytes.Buffer, line string) {
	for _, r := range line {
		switch {
		case r == '\n' || strconv.IsPrint(r) && r != utf8.RuneError:
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(b, `\u%04x`, r)
		}
	}
}
