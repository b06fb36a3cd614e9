// The texts in sight whose contrast is under WCAG's AA: 4.5, or 3 for large ones.
() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const known = new Map();
  function rgba(colour) {
    if (!known.has(colour)) {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = colour;
      pen.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
      known.set(colour, [r, g, b, a / 255]);
    }
    return known.get(colour);
  }
  const over = ([r, g, b, a], under) => [r, g, b].map((value, i) => value * a + under[i] * (1 - a));
  function ground(one) {
    if (!one) return [255, 255, 255, 1];
    const own = rgba(getComputedStyle(one).backgroundColor);
    return own[3] === 1 ? own : over(own, ground(one.parentElement));
  }
  function luminance(colour) {
    const [r, g, b] = colour.map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }
  const faint = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement;
    const text = walk.currentNode.textContent.trim();
    if (!text || !one.checkVisibility({ checkVisibilityCSS: true, checkOpacity: true })) continue;
    const style = getComputedStyle(one);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const under = ground(one);
    const ink = over(rgba(one instanceof SVGElement ? style.fill : style.color), under);
    const [light, dark] = [luminance(ink), luminance(under)].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < (isLarge ? 3 : 4.5)) faint.add(`${contrast.toFixed(2)} <${one.tagName} class="${one.getAttribute("class")}"> ${text.slice(0, 60)}`);
  }
  return walk.root.innerText.length > 100 ? [...faint] : ["there is hardly a text in sight"];
}
