// Acquires permits from rls and prints when each permit came.
//
// Usage: rls schema protocol > rls.binpb && node acquire.mjs ADDRESS DOMAIN KEY=VALUE[,KEY=VALUE...] PERMITS
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';

const protocol = loader.loadFileDescriptorSetFromBuffer(readFileSync('rls.binpb'), { keepCase: true, enums: String });
const { RateLimitService } = grpc.loadPackageDefinition(protocol).envoy.service.ratelimit.v3;

// newRequest returns a request for one descriptor, such as "tenant=acme,path=/orders".
function newRequest(domain, descriptor, permits = 1) {
  const entries = descriptor.split(',').map((part) => {
    const [key, ...value] = part.split('=');
    return { key, value: value.join('=') };
  });
  return { domain, descriptors: [{ entries }], hits_addend: permits };
}

// send sends a call that charges nothing if it is denied. It returns the response and the header.
function send(client, request) {
  const metadata = new grpc.Metadata();
  metadata.set('rls-acquire', 'true');
  return new Promise((resolve, reject) => {
    let header = new grpc.Metadata();
    const call = client.ShouldRateLimit(request, metadata, { deadline: Date.now() + 5000 }, (error, response) =>
      error ? reject(error) : resolve({ response, header }));
    call.on('metadata', (received) => { header = received; });
  });
}

// acquire waits until the permits of the request come, for at most timeout seconds.
export async function acquire(client, request, timeout = 60) {
  const deadline = performance.now() + 1000 * timeout;
  for (;;) {
    const { response, header } = await send(client, request);
    if (response.overall_code !== 'OVER_LIMIT') return;
    const [wait] = header.get('rls-retry-after');
    if (wait === 'never') throw new Error(`${request.hits_addend} permits can never pass`);
    let seconds = Number(wait);
    seconds += Math.random() * (0.001 + seconds / 20); // others wait for the same reset
    if (performance.now() + 1000 * seconds > deadline) throw new Error(`permits come in ${seconds} s at the earliest`);
    await sleep(1000 * seconds);
  }
}

const [address, domain, descriptor, permits] = process.argv.slice(2);
if (permits === undefined) {
  console.error('usage: node acquire.mjs ADDRESS DOMAIN KEY=VALUE[,KEY=VALUE...] PERMITS');
  process.exit(1);
}
const client = new RateLimitService(address, grpc.credentials.createInsecure());
const request = newRequest(domain, descriptor);
const start = performance.now();
for (let number = 1; number <= Number(permits); number++) {
  await acquire(client, request);
  console.log(`permit ${number} after ${((performance.now() - start) / 1000).toFixed(3)} s`);
}
client.close();
