package descriptors

import "github.com/seed-81f232ab/rls/descriptors/limitsfile"

// bigramFilter is a set of pairs of neighbouring bytes, hashed to 128 bits. A pattern can match only a text that
// has all pairs of the pattern, so two AND operations rule out most patterns.
type bigramFilter [2]uint64

const (
	// minFiltered is the number of wildcards from which a filter saves time.
	minFiltered = 4

	// maxFilteredBytes bounds filtered texts. The pairs of longer texts fill the filter.
	maxFilteredBytes = 512

	// keyEdge and valueEdge stand for the byte before and after a key or a value.
	keyEdge, valueEdge = 256, 257
)

func (f *bigramFilter) add(a, b uint32) {
	h := (a<<9 ^ b) * 0x9E3779B1 >> 25
	f[h>>6] |= 1 << (h & 63)
}

// addText adds the pairs of text. left and right are its neighbours, or -1 if unknown.
func (f *bigramFilter) addText(text string, left, right int) {
	for i := range len(text) {
		if left >= 0 {
			f.add(uint32(left), uint32(text[i]))
		}
		left = int(text[i])
	}
	if left >= 0 && right >= 0 {
		f.add(uint32(left), uint32(right))
	}
}

// addPattern adds the pairs that every text of p has. edge is the neighbour at both ends of the text.
func (f *bigramFilter) addPattern(p *limitsfile.Pattern, edge int) {
	if p.Literal {
		f.addText(p.Prefix, edge, edge)
		return
	}
	if p.Prefix != "" {
		f.addText(p.Prefix, edge, -1)
	}
	for _, part := range p.Middle {
		f.addText(part, -1, -1)
	}
	if p.Suffix != "" {
		f.addText(p.Suffix, -1, edge)
	}
}
