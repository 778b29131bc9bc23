package boundedyaml

import "go.yaml.in/yaml/v3"

// aliasCounter counts the nodes behind aliases, at each use of an alias.
type aliasCounter struct {
	bounds   Bounds
	anchors  map[string]anchor
	visited  int // nodes, without repetitions
	repeated int // nodes behind all aliases so far

	// anchored is the number of nodes below anchors, which the parser keeps until the end of the file.
	anchored int
	isBelow  bool
}

// anchor is a node that aliases can repeat.
type anchor struct {
	node *yaml.Node
	size int // with repetitions; 0 while the node is counted
}

const maxSize = 1 << 40

func newAliasCounter(b Bounds) aliasCounter {
	return aliasCounter{bounds: b, anchors: map[string]anchor{}}
}

func (c *aliasCounter) size(n *yaml.Node) (int, error) {
	c.visited++
	if n.Kind == yaml.AliasNode {
		return c.aliasSize(n)
	}
	if n.Anchor == "" {
		return c.sizeOfAll(n)
	}
	before, wasBelow := c.visited, c.isBelow
	c.anchors[n.Anchor], c.isBelow = anchor{node: n}, true
	total, err := c.sizeOfAll(n)
	c.isBelow = wasBelow
	if c.anchors[n.Anchor].node == n {
		c.anchors[n.Anchor] = anchor{n, total}
	}
	if !wasBelow {
		c.anchored += 1 + c.visited - before
	}
	if err == nil && c.anchored > c.bounds.MaxNodes {
		err = problemAt(n, "more than %d keys and values have anchors (&); remove the anchors that no alias uses", c.bounds.MaxNodes)
	}
	return total, err
}

func (c *aliasCounter) sizeOfAll(n *yaml.Node) (int, error) {
	total := 1
	for _, child := range n.Content {
		size, err := c.size(child)
		if err != nil {
			return 0, err
		}
		total = min(total+size, maxSize)
	}
	return total, nil
}

func (c *aliasCounter) aliasSize(n *yaml.Node) (int, error) {
	size := c.anchors[n.Value].size
	if size == 0 {
		return 0, problemAt(n, "alias *%s is inside its own anchor", n.Value)
	}
	if c.repeated = min(c.repeated+size, maxSize); c.repeated > c.bounds.MaxRepeated {
		return 0, problemAt(n, "aliases repeat more than %d keys and values (each use of an alias counts); write them out, or split the file", c.bounds.MaxRepeated)
	}
	return size, nil
}
