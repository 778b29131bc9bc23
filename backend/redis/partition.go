package redis

import "strconv"

// hashSlotCount is the number of hash slots of a Redis Cluster.
const hashSlotCount = 16384

// hashTags returns n hash tags such as "{7}". Their hash slots are spread evenly: each n-th part of all
// hash slots has one tag. Usually each master owns one range of hash slots, as after redis-cli --cluster
// create. Then the numbers of partitions of two masters differ by at most two.
func hashTags(n int) []string {
	tags := make([]string, n)
	for i, found := 0, 0; found < n; i++ {
		number := strconv.Itoa(i)
		if part := hashSlot(number) * n / hashSlotCount; tags[part] == "" {
			tags[part] = "{" + number + "}"
			found++
		}
	}
	return tags
}

// hashSlot returns the hash slot of a hash tag, which is the CRC-16/XMODEM of the tag, as the Redis
// Cluster specification defines.
func hashSlot(tag string) int {
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
	return int(crc % hashSlotCount)
}
