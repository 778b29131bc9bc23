// Asks rls once whether a request may pass, as a web service does before its work.
//
// Usage: node check.mjs URL DOMAIN KEY=VALUE[,KEY=VALUE...] [SECONDS]

// check returns whether the request may pass, and the seconds to wait if not (undefined: it can never pass).
export async function check(url, domain, descriptor, seconds = 0.1) {
  const entries = descriptor.split(',').map((part) => {
    const [key, ...value] = part.split('=');
    return { key, value: value.join('=') };
  });
  try {
    const response = await fetch(`${url}/v1/check`, {
      method: 'POST',
      body: JSON.stringify({ domain, checks: [{ descriptor: entries }] }),
      signal: AbortSignal.timeout(1000 * seconds),
    });
    if (!response.ok) throw new Error(`status ${response.status}`);
    const { answers: [answer] } = await response.json();
    if (answer.code === 'ERROR') throw new Error(answer.error.message);
    return { passes: answer.code !== 'OVER_LIMIT', wait: answer.never ? undefined : answer.reset_seconds };
  } catch (error) {
    console.error(`rls does not decide, so the request passes: ${error.message}`);
    return { passes: true, wait: 0 };
  }
}

// A middleware of Express. user is the identity that your own login has checked.
export const limitUsers = (url, domain) => async (request, response, next) => {
  const { passes, wait } = await check(url, domain, `user=${request.user}`);
  if (passes) return next();
  if (wait !== undefined) response.set('Retry-After', String(Math.ceil(wait))); // whole seconds; 0 would repeat at once
  response.status(429).json({ error: 'too many requests' });
};

if (process.argv[1].endsWith('check.mjs')) {
  const { passes, wait } = await check(...process.argv.slice(2));
  console.log(passes ? '200' : wait === undefined ? '429' : `429 Retry-After: ${Math.ceil(wait)}`);
}
