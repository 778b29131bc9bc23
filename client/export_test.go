package client

// Waiting returns the number of callers that wait for permits.
func Waiting(c *Client) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, q := range c.queues {
		n += q.waiters.Len()
	}
	return n
}
