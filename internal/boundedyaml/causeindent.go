package boundedyaml

import "fmt"

// block is a list or a mapping in block style. Its entries start with indent spaces.
type block struct {
	indent int
	isList bool
	offset int // of the first entry
}

// continuation states which deeper lines can follow an entry.
type continuation uint8

const (
	nothing   continuation = iota // the value is complete
	anyValue                      // the value is missing so far
	plainText                     // the value is text without quotes, which can go on
)

// indent returns the indentation of the last block, or -1.
func (f *causeFinder) indent() int {
	if len(f.blocks) == 0 {
		return -1
	}
	return f.blocks[len(f.blocks)-1].indent
}

// continuePlain checks a line that goes on with a text.
func (f *causeFinder) continuePlain(offset, indent int, text string) {
	if !keyText.MatchString(text) {
		return
	}
	if len(f.blocks) == 0 {
		f.fail(offset, "%s can't follow text; want key: value in the lines before it", excerpt(text))
		return
	}
	f.failIndent(offset, indent, f.blocks[len(f.blocks)-1])
}

// enterBlock finds the block of a line, and reports whether the line has a right indentation.
func (f *causeFinder) enterBlock(offset, indent int, text string) bool {
	var endedBlock *block // the last block that ends here
	for len(f.blocks) > 0 && f.indent() > indent {
		endedBlock = &f.blocks[len(f.blocks)-1]
		f.blocks = f.blocks[:len(f.blocks)-1]
	}
	if len(f.blocks) == 0 {
		if endedBlock != nil {
			f.failIndent(offset, indent, *endedBlock)
		}
		return endedBlock == nil
	}
	top := f.blocks[len(f.blocks)-1]
	switch {
	case top.indent < indent && endedBlock != nil:
		f.failIndent(offset, indent, *endedBlock)
	case top.indent < indent && f.after == nothing:
		f.failIndent(offset, indent, top)
	case top.indent == indent && top.isList && !isItem(text):
		f.blocks = f.blocks[:len(f.blocks)-1]
		if f.indent() == indent {
			break
		}
		switch {
		case isTightItem(text):
			f.failTightItem(offset, text)
		case endedBlock != nil:
			f.failIndent(offset, indent, *endedBlock)
		default:
			f.fail(offset, "got %s between the items of a list, want an item that starts with \"- \"", excerpt(text))
		}
	case top.indent == indent && !top.isList && isItem(text) && (endedBlock != nil || f.after != anyValue):
		f.fail(offset, "an item of a list can't be a key beside line %d; want it below a key that ends in a colon, indented as the other items", f.line(top.offset))
	}
	return f.cause.offset < 0
}

// failIndent reports an indentation that fits no block. nearest is the block that was meant.
func (f *causeFinder) failIndent(offset, indent int, nearest block) {
	f.fail(offset, "wrong indentation: got %s, want %d as in line %d", spaces(indent), nearest.indent, f.line(nearest.offset))
}

// spaces returns a number of spaces in words.
func spaces(n int) string {
	if n == 1 {
		return "1 space"
	}
	return fmt.Sprintf("%d spaces", n)
}
