package redis

import "strconv"

// slots is how many slots a Redis Cluster has.
const slots = 16384

// hashTags are n hash tags, "{7}", whose slots lie one in each n-th of all slots.
// So, where each master has one run of slots, as after redis-cli --cluster create,
// all masters have the same share of the partitions, give or take two.
func hashTags(n int) []string {
	tags := make([]string, n)
	for i, found := 0, 0; found < n; i++ {
		number := strconv.Itoa(i)
		if p := slot(number) * n / slots; tags[p] == "" {
			tags[p] = "{" + number + "}"
			found++
		}
	}
	return tags
}

// slot is the slot of a hash tag: its CRC-16 in the variant of XMODEM, as the
// Redis Cluster specification says.
func slot(tag string) int {
	var crc uint16
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % slots)
}
